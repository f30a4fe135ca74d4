"""One piece of work and the streams that look at it, at the moments when the peer goes."""

import asyncio

import grpc
import pytest
from whippletree.v1 import common_pb2

from services.common.calls import WorkKey
from services.common.effect_run import CANCEL, EffectAborted, EffectRun, Said, Viewer
from services.common.effect_stream import EffectStreams, Prepared
from services.common.work import WorkBook
from tests.common.support import BOUND_S
from tests.common.test_effect_stream import REPLIES, request_of, result

KEY = WorkKey("t", "s", "e")


class Peer:
    """A stream's context whose peer says what it is told to, and takes messages while `reads` is set."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.reads = asyncio.Event()
        self.writing = asyncio.Event()
        self.written = []

    async def read(self):
        if self.messages:
            return self.messages.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send_initial_metadata(self, metadata):
        pass

    async def write(self, reply):
        self.writing.set()
        await self.reads.wait()
        self.written.append(reply)


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
    peer = Peer(request_of(), type(request_of())(start=common_pb2.Start()))
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
