"""The server's side of effect streams, over a real port: the start is said, counted, joined and aborted."""

import asyncio
import contextlib

import grpc
import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from services.common.calls import WorkKey, WorkTable
from services.common.effect_run import EffectAborted, EffectRaised, EffectRun
from services.common.effect_stream import EffectStreams, Prepared, Replies, StreamTimings
from services.common.errors import invalid, unavailable
from services.common.metadata import ACCEPTED, LIMIT_MS, NOT_STARTED, find
from services.common.work import WorkBook
from tests.common.support import BOUND_S, served, until

CANCEL = common_pb2.ABORT_KIND_CANCEL
SHUTDOWN = common_pb2.ABORT_KIND_SHUTDOWN
DEADLINE = common_pb2.ABORT_KIND_DEADLINE
QUICK = StreamTimings(request_s=0.3, first_word_s=0.05, heartbeat_s=0.05, start_s=0.4)


def result(**end):
    return mcp_pool_pb2.ToolCallReply(result=mcp_pool_pb2.ToolCallResult(**end))


REPLIES = Replies(
    queued=lambda queued: mcp_pool_pb2.ToolCallReply(queued=queued),
    accepted=lambda accepted: mcp_pool_pb2.ToolCallReply(accepted=accepted),
    aborted=lambda aborted: result(aborted=aborted),
    raised=lambda raised: result(raised=raised),
)


class Pool(mcp_pool_pb2_grpc.McpPoolServicer):
    """Work whose turn and end the test decides; counts how often it began."""

    full_name = "whippletree.v1.McpPool"
    service = "mcp-pool"

    def __init__(self, timings=None, table=None):
        self.work = WorkBook()
        self.streams = EffectStreams(REPLIES, self.work, table, timings)
        self.turn = asyncio.Event()
        self.turn.set()
        self.finish = asyncio.Event()
        self.finish.set()
        self.arrived = asyncio.Event()
        self.began = asyncio.Event()
        self.starts = 0
        self.positions: list[int] = []
        self.aborts: list[int] = []
        self.failure: BaseException | None = None
        self.early: BaseException | None = None
        self.runs: list[EffectRun] = []

    def register(self, server):
        mcp_pool_pb2_grpc.add_McpPoolServicer_to_server(self, server)

    def in_flight(self):
        return self.work.in_flight()

    async def stop_taking(self):
        self.streams.stop_taking()

    async def close(self):
        await self.streams.close(0.1)

    async def Call(self, request, context):
        await self.streams.serve(context, self.prepare)

    async def Cancel(self, request, context):
        effect = request.effect
        key = WorkKey(effect.tenant_id, effect.session_id, effect.effect_id)
        return common_pb2.CancelReply(state=self.streams.cancel(key, request.kind))

    def prepare(self, request):
        effect = request.effect
        if not effect.effect_id:
            raise invalid("effect_id is missing.")
        return Prepared(
            kind="mcp",
            session_id=effect.session_id,
            key=WorkKey(effect.tenant_id, effect.session_id, effect.effect_id),
            fingerprint=request.arguments.text.encode(),
            perform=self.perform,
            epoch=effect.epoch,
        )

    async def perform(self, run):
        self.runs.append(run)
        run.abort.listen(self.aborts.append)
        self.arrived.set()
        if self.early is not None:
            raise self.early
        for position in self.positions:
            run.queued(position)
        await self.turn.wait()
        await run.accept(5000)
        self.starts += 1
        self.began.set()
        if self.failure is not None:
            raise self.failure
        finish = asyncio.ensure_future(self.finish.wait())
        abort = asyncio.ensure_future(run.abort.wait())
        try:
            await asyncio.wait({finish, abort}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finish.cancel()
            abort.cancel()
        if run.abort.kind == CANCEL:
            raise EffectAborted(CANCEL)
        await self.finish.wait()
        return result(outcome=common_pb2.Json(text="done"))


def request_of(effect_id="e", arguments="{}", epoch=1):
    return mcp_pool_pb2.ToolCallRequest(
        request=mcp_pool_pb2.ToolCall(
            effect=common_pb2.EffectRef(tenant_id="t", session_id="s", effect_id=effect_id, epoch=epoch),
            arguments=common_pb2.Json(text=arguments),
        )
    )


START = mcp_pool_pb2.ToolCallRequest(start=common_pb2.Start())


def abort(kind):
    return mcp_pool_pb2.ToolCallRequest(abort=common_pb2.Aborted(kind=kind))


async def opened(port, **request):
    call = mcp_pool_pb2_grpc.McpPoolStub(port.channel).Call(metadata=port.metadata)
    await call.write(request_of(**request))
    return call


async def cancelled(port, kind=CANCEL, effect_id="e"):
    effect = common_pb2.EffectRef(tenant_id="t", session_id="s", effect_id=effect_id)
    reply = await mcp_pool_pb2_grpc.McpPoolStub(port.channel).Cancel(
        common_pb2.CancelRequest(effect=effect, kind=kind), metadata=port.metadata
    )
    return reply.state


async def ended(call):
    """The remaining replies."""
    replies = []
    async with asyncio.timeout(BOUND_S):
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)
    return replies


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ended(call)
    return caught.value


@contextlib.asynccontextmanager
async def bounded():
    async with asyncio.timeout(BOUND_S):
        yield


async def test_work_whose_turn_comes_at_once_is_accepted_in_the_metadata_and_begins_after_start():
    pool = Pool()
    async with served(pool) as port:
        call = await opened(port)
        metadata = await call.initial_metadata()
        assert find(metadata, ACCEPTED) == "1"
        assert find(metadata, LIMIT_MS) == "5000"
        assert pool.starts == 0
        await call.write(START)
        [end] = await ended(call)
        assert end.result.outcome.text == "done"
        assert pool.starts == 1
        assert pool.work.counts == {"mcp.completed": 1}


async def test_work_that_waits_says_so_at_once_and_again_and_is_accepted_by_message():
    pool = Pool(QUICK)
    pool.turn.clear()
    pool.positions = [3, 1]
    async with served(pool) as port, bounded():
        call = await opened(port)
        assert find(await call.initial_metadata(), ACCEPTED) is None
        positions = [(await call.read()).queued.position for _ in range(4)]
        assert positions == [3, 1, 1, 1]
        pool.turn.set()
        while (reply := await call.read()).WhichOneof("message") == "queued":
            pass
        assert reply.accepted.limit_ms == 5000
        assert pool.starts == 0
        await call.write(START)
        [end] = await ended(call)
        assert end.result.outcome.text == "done"


async def test_work_that_says_nothing_is_called_queued_before_the_peer_gives_up():
    pool = Pool(QUICK)
    pool.turn.clear()
    async with served(pool) as port, bounded():
        call = await opened(port)
        assert (await call.read()).queued.position == 0
        call.cancel()


async def test_a_second_stream_joins_the_work_and_both_get_its_end():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        first = await opened(port)
        await first.initial_metadata()
        await first.write(START)
        await pool.began.wait()
        second = await opened(port)
        assert find(await second.initial_metadata(), ACCEPTED) == "1"
        await second.write(START)
        pool.finish.set()
        assert await ended(first) == await ended(second)
        third = await opened(port)
        assert find(await third.initial_metadata(), ACCEPTED) == "1"
        await third.write(START)
        [end] = await ended(third)
        assert end.result.outcome.text == "done"
        assert pool.starts == 1


async def test_a_join_while_queued_waits_with_the_first_and_either_start_begins_the_work_once():
    pool = Pool(QUICK)
    pool.turn.clear()
    pool.positions = [2]
    async with served(pool) as port, bounded():
        first = await opened(port)
        assert (await first.read()).queued.position == 2
        second = await opened(port)
        assert (await second.read()).queued.position == 2
        pool.turn.set()
        for call in (first, second):
            while (await call.read()).WhichOneof("message") == "queued":
                pass
        await second.write(START)
        await first.write(START)
        assert await ended(first) == await ended(second)
        assert pool.starts == 1


async def test_another_call_under_the_same_effect_id_is_invalid():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        first = await opened(port)
        await first.write(START)
        await pool.began.wait()
        error = await refused(await opened(port, arguments='{"other":1}'))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        pool.finish.set()
        await ended(first)


async def test_a_lower_epoch_never_joins():
    pool = Pool()
    async with served(pool) as port, bounded():
        call = await opened(port, epoch=2)
        await call.write(START)
        await ended(call)
        error = await refused(await opened(port, epoch=1))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert pool.starts == 1


@pytest.mark.parametrize("leave", ["cancel", "half close"])
async def test_a_stream_that_ends_before_start_frees_its_id_and_nothing_begins(leave):
    pool = Pool()
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.initial_metadata()
        if leave == "cancel":
            call.cancel()
        else:
            await call.done_writing()
            [end] = await ended(call)
            assert end.result.aborted.kind == SHUTDOWN
        await until(lambda: not pool.in_flight())
        assert pool.starts == 0
        again = await opened(port)
        await again.write(START)
        [end] = await ended(again)
        assert end.result.outcome.text == "done"
        assert pool.starts == 1


async def test_a_stream_that_ends_while_queued_frees_its_id_at_once():
    pool = Pool()
    pool.turn.clear()
    pool.positions = [1]
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.read()
        call.cancel()
        await until(lambda: not pool.in_flight())
        pool.turn.set()
        again = await opened(port)
        await again.write(START)
        assert (await ended(again))[-1].result.outcome.text == "done"
        assert pool.starts == 1


async def test_a_stream_that_breaks_after_start_is_a_shutdown_and_the_outcome_is_kept():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.write(START)
        await pool.began.wait()
        call.cancel()
        await until(lambda: pool.aborts)
        assert pool.aborts == [SHUTDOWN]
        pool.finish.set()
        again = await opened(port)
        await again.write(START)
        [end] = await ended(again)
        assert end.result.outcome.text == "done"
        assert pool.starts == 1


async def test_one_of_two_streams_may_go_without_harm():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        first = await opened(port)
        await first.write(START)
        await pool.began.wait()
        second = await opened(port)
        await second.initial_metadata()
        await second.write(START)
        first.cancel()
        await until(lambda: len(pool.runs[0]._viewers) == 1)
        assert pool.aborts == []
        pool.finish.set()
        assert (await ended(second))[-1].result.outcome.text == "done"


@pytest.mark.parametrize("kind", [CANCEL, SHUTDOWN, DEADLINE])
async def test_an_abort_before_start_ends_the_work_by_its_kind_and_nothing_begins(kind):
    pool = Pool()
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.initial_metadata()
        await call.write(abort(kind))
        [end] = await ended(call)
        assert end.result.aborted.kind == kind
        assert pool.starts == 0


async def test_an_abort_after_start_tells_its_kind_to_the_work():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.write(START)
        await pool.began.wait()
        await call.write(abort(DEADLINE))
        await until(lambda: pool.aborts)
        assert pool.aborts == [DEADLINE]
        pool.finish.set()
        assert (await ended(call))[-1].result.outcome.text == "done"


async def test_a_cancelled_work_that_began_is_never_started_again():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.write(START)
        await pool.began.wait()
        await call.write(abort(CANCEL))
        assert (await ended(call))[-1].result.aborted.kind == CANCEL
        again = await opened(port)
        await again.write(START)
        assert (await ended(again))[-1].result.aborted.kind == CANCEL
        assert pool.starts == 1


async def test_cancel_by_effect_id_says_what_it_found():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        assert await cancelled(port) == common_pb2.CancelReply.STATE_NOT_HERE
        call = await opened(port)
        await call.write(START)
        await pool.began.wait()
        assert await cancelled(port) == common_pb2.CancelReply.STATE_STOPPING
        assert (await ended(call))[-1].result.aborted.kind == CANCEL
        assert await cancelled(port) == common_pb2.CancelReply.STATE_FINISHED


@pytest.mark.parametrize(
    ("failure", "text"),
    [(EffectRaised("The server is gone."), "The server is gone."), (ValueError("secret"), "log")],
)
async def test_what_the_work_raises_after_its_start_crosses_as_raised_and_is_kept(failure, text):
    pool = Pool()
    pool.failure = failure
    async with served(pool) as port, bounded():
        for _ in range(2):
            call = await opened(port)
            await call.write(START)
            [end] = await ended(call)
            assert text in end.result.raised.message
            assert "secret" not in end.result.raised.message
        assert pool.starts == 1


@pytest.mark.parametrize(
    ("early", "code"),
    [
        (unavailable("full"), grpc.StatusCode.UNAVAILABLE),
        (ValueError("secret"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_what_the_work_raises_before_its_start_says_that_nothing_started(early, code):
    pool = Pool()
    pool.early = early
    async with served(pool) as port, bounded():
        error = await refused(await opened(port))
        assert error.code() is code
        assert find(error.trailing_metadata(), NOT_STARTED) == "1"
        assert "secret" not in str(error)
        pool.early = None
        again = await opened(port)
        await again.write(START)
        assert (await ended(again))[-1].result.outcome.text == "done"


async def test_a_caller_that_never_says_start_loses_its_turn():
    pool = Pool(QUICK)
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.initial_metadata()
        error = await refused(call)
        assert find(error.trailing_metadata(), NOT_STARTED) == "1"
        assert pool.starts == 0
        assert not pool.in_flight()


@pytest.mark.parametrize(
    "messages",
    [
        [START],
        [mcp_pool_pb2.ToolCallRequest()],
        [request_of(effect_id="")],
        [],
        [request_of(), request_of()],
    ],
)
async def test_streams_that_break_the_protocol_are_refused_and_begin_nothing(messages):
    pool = Pool(QUICK)
    async with served(pool) as port, bounded():
        call = mcp_pool_pb2_grpc.McpPoolStub(port.channel).Call(metadata=port.metadata)
        for message in messages:
            await call.write(message)
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert pool.starts == 0


async def test_a_start_before_the_turn_is_refused():
    pool = Pool()
    pool.turn.clear()
    pool.positions = [0]
    async with served(pool) as port, bounded():
        call = await opened(port)
        await call.read()
        await call.write(START)
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert pool.starts == 0


async def test_while_draining_new_work_is_refused_and_work_in_flight_may_be_joined():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        first = await opened(port)
        await first.write(START)
        await pool.began.wait()
        await pool.stop_taking()
        error = await refused(await opened(port, effect_id="new"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert find(error.trailing_metadata(), NOT_STARTED) == "1"
        second = await opened(port)
        await second.initial_metadata()
        await second.write(START)
        pool.finish.set()
        assert (await ended(first))[-1] == (await ended(second))[-1]


async def test_a_stopping_server_gives_work_its_grace_then_aborts_it_as_a_shutdown():
    pool = Pool()
    pool.finish.clear()
    async with served(pool, stop_grace_ms=1500) as port:
        call = await opened(port)
        await call.write(START)
        await pool.began.wait()
        await port.end()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await ended(call)
    assert pool.aborts == [SHUTDOWN]
    assert not pool.in_flight()


async def test_the_abort_that_came_with_start_wins_over_it():
    pool = Pool()
    run = EffectRun(1.0)
    pool.finish.clear()
    task = asyncio.ensure_future(pool.perform(run))
    await until(lambda: run.accepted)
    run.start()
    run.abort.set(CANCEL)
    with pytest.raises(EffectAborted):
        await task
    assert pool.starts == 0


async def test_outcomes_are_kept_by_the_table_s_limits():
    pool = Pool(table=WorkTable(max_kept=1))
    async with served(pool) as port, bounded():
        for name in ("a", "b", "a"):
            call = await opened(port, effect_id=name)
            await call.write(START)
            await ended(call)
    assert pool.starts == 3


async def test_an_end_that_crosses_a_late_start_still_arrives_whole():
    pool = Pool()
    pool.finish.clear()
    async with served(pool) as port, bounded():
        first = await opened(port)
        await first.write(START)
        await pool.began.wait()
        second = await opened(port)
        await second.initial_metadata()
        pool.finish.set()
        assert (await ended(first))[-1].result.outcome.text == "done"
        # The work is over, and this stream has not said start yet.
        await second.write(START)
        assert (await ended(second))[-1].result.outcome.text == "done"
