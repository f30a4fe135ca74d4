"""One piece of work and the streams that look at it, at the moments when the peer goes."""

import asyncio
from dataclasses import dataclass

import grpc
import pytest
from whippletree.v1 import common_pb2

from services.common.calls import WorkKey
from services.common.effect_run import CANCEL, EffectAborted, EffectRun, Said, Viewer
from services.common.effect_stream import EffectStreams, Prepared
from services.common.work import WorkBook
from tests.common.support import BOUND_S, until
from tests.common.test_effect_stream import REPLIES, request_of, result

KEY = WorkKey("t", "s", "e")


@dataclass
class Ack:
    """The answer to an event: this service's messages have none."""

    seq: int

    def WhichOneof(self, name):
        return "ack"

    @property
    def ack(self):
        return self


class Peer:
    """A stream's context whose peer says what it is told to, and takes messages while `reads` is set.

    With `answers` it acknowledges each message, with `failure` writing fails.
    """

    def __init__(self, *messages, answers=False, failure=None):
        self.messages = list(messages)
        self.answers = answers
        self.failure = failure
        self.reads = asyncio.Event()
        self.writing = asyncio.Event()
        self.written = []
        self.came = asyncio.Event()

    async def read(self):
        while not self.messages:
            self.came.clear()
            await self.came.wait()
        return self.messages.pop(0)

    async def send_initial_metadata(self, metadata):
        pass

    async def write(self, reply):
        self.writing.set()
        await self.reads.wait()
        if self.failure is not None:
            raise self.failure
        self.written.append(reply)
        if self.answers:
            self.messages.append(Ack(len(self.written) - 1))
            self.came.set()


def start():
    return type(request_of())(start=common_pb2.Start())


def streams_of(perform):
    def prepare(request):
        return Prepared("mcp", "s", KEY, b"", perform)

    return EffectStreams(REPLIES, WorkBook()), prepare


async def test_a_message_that_is_being_written_when_the_peer_goes_counts_as_not_sent():
    sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def perform(run):
        await run.accept(1000)
        sent.set_result(await run.send(result()))

    streams, prepare = streams_of(perform)
    peer = Peer(request_of(), start())
    serving = asyncio.create_task(streams.serve(peer, prepare))
    async with asyncio.timeout(BOUND_S):
        await peer.writing.wait()
        serving.cancel()
        assert await sent is False
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_message_that_waits_when_the_peer_goes_counts_as_not_sent():
    run: EffectRun = EffectRun(1.0)
    viewer: Viewer = Viewer()
    run.attach(viewer)
    written = asyncio.get_running_loop().create_future()
    viewer.put(Said(result(), written))
    run.detach(viewer)
    assert await written is False
    assert await run.send(result()) is False
    assert await run.event(result(), 1, 1.0) is False


async def test_work_that_is_cancelled_before_its_first_step_still_ends_for_its_streams():
    performed = []

    async def perform(run):
        performed.append(run)

    streams, prepare = streams_of(perform)
    peer = Peer(request_of())
    peer.reads.set()
    serving = asyncio.create_task(streams.serve(peer, prepare))
    async with asyncio.timeout(BOUND_S):
        # One turn of the loop: the work's task exists and has not run, as when a Cancel is handled right then.
        await asyncio.sleep(0)
        assert streams.cancel(KEY, CANCEL) == common_pb2.CancelReply.STATE_STOPPING
        await serving
        assert [reply.result.aborted.kind for reply in peer.written] == [CANCEL]
        assert performed == []
        await streams.close()


async def test_work_that_was_aborted_before_its_turn_is_not_accepted():
    run: EffectRun = EffectRun(1.0)
    run.abort.set(CANCEL)
    with pytest.raises(EffectAborted):
        await run.accept(1000)
    assert not run.begun


async def test_work_whose_start_does_not_come_in_time_gives_its_turn_back():
    run: EffectRun = EffectRun(0.01)
    with pytest.raises(Exception, match="did not say start") as caught:
        await run.accept(1000)
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert not run.begun


async def test_a_peer_that_goes_at_the_moment_of_the_end_ends_the_handler_as_cancelled():
    ending = asyncio.Event()

    async def perform(run):
        await run.accept(1000)
        await ending.wait()
        # The cancel comes after the end has woken the handler out of its read, and before the handler runs.
        asyncio.get_running_loop().call_soon(serving.cancel)
        return result()

    streams, prepare = streams_of(perform)
    peer = Peer(request_of(), start())
    peer.reads.set()
    serving = asyncio.create_task(streams.serve(peer, prepare))
    ending.set()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert peer.written == []
    assert streams.cancel(KEY, CANCEL) == common_pb2.CancelReply.STATE_FINISHED


async def test_events_that_come_close_together_are_told_in_order_before_the_end():
    async def perform(run):
        await run.accept(1000)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(
                    run.event(result(raised=common_pb2.Raised(message=str(number))), number, 5.0)
                )
        return result(raised=common_pb2.Raised(message="end"))

    streams, prepare = streams_of(perform)
    peer = Peer(request_of(), start(), answers=True)
    peer.reads.set()
    async with asyncio.timeout(BOUND_S):
        await streams.serve(peer, prepare)
    assert [reply.result.raised.message for reply in peer.written] == ["0", "1", "2", "end"]


async def test_an_event_that_is_not_answered_in_time_raises():
    late = []

    async def perform(run):
        await run.accept(1000)
        try:
            await run.event(result(), 1, 0.01)
        except TimeoutError:
            late.append(run)
        return result()

    streams, prepare = streams_of(perform)
    peer = Peer(request_of(), start())
    peer.reads.set()
    async with asyncio.timeout(BOUND_S):
        await streams.serve(peer, prepare)
    assert len(late) == 1
    assert len(peer.written) == 2


async def test_a_write_that_fails_ends_the_stream_and_not_the_work():
    ended = asyncio.Event()

    async def perform(run):
        await run.accept(1000)
        assert await run.send(result()) is False
        ended.set()
        return result()

    streams, prepare = streams_of(perform)
    peer = Peer(request_of(), start(), failure=grpc.aio.InternalError("the call is gone"))
    peer.reads.set()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(grpc.aio.InternalError):
            await streams.serve(peer, prepare)
        await ended.wait()
        await until(lambda: streams.cancel(KEY, CANCEL) == common_pb2.CancelReply.STATE_FINISHED)
