"""One suite for the executor in process, over a Unix socket and over TCP."""

import asyncio
import json

import grpc
import pytest
from whippletree.v1 import model_executor_pb2, model_executor_pb2_grpc

from services.common.errors import FAULT_TEXT
from services.model_executor.executor import CallAborted, Draining, ModelExecutor
from services.model_executor.routes import Answer, UnusableRoute
from services.model_executor.service import ModelExecutorService
from tests.common.support import BOUND_S, served, until
from tests.model_executor.support import (
    WAYS,
    OverGrpc,
    Ticker,
    call_of,
    document,
    reached,
    request_of,
    route_of,
    user,
)

HI = document(user("hi"))
every_way = pytest.mark.parametrize("way", WAYS)


class Counting:
    """A route that counts what it is asked."""

    name = "scripted"
    recovers = True
    limit_ms = 1000

    def __init__(self, delay_ms: int = 0) -> None:
        self.asked = 0
        self.delay_ms = delay_ms

    def answer(self, call):
        self.asked += 1
        return Answer(json.dumps(f"answer {self.asked}"), self.delay_ms)


@every_way
async def test_a_call_gets_its_answer(way):
    async with reached(way, ModelExecutor(route_of({"answer": "hello"}))) as caller:
        assert await caller.call(call_of(HI)) == "hello"


@every_way
async def test_a_fixture_call_never_asks_the_configured_route(way):
    route = Counting()
    async with reached(way, ModelExecutor(route)) as caller:
        outcome = await caller.call(call_of(HI, fixture=True))
    assert outcome["output"][0]["text"] == "Hello from the fixture model."
    assert route.asked == 0


@every_way
async def test_a_failure_of_the_script_is_an_outcome(way):
    failure = {"code": "rate_limited", "message": "m", "retryable": True}
    async with reached(way, ModelExecutor(route_of({"failure": failure}))) as caller:
        assert await caller.call(call_of(HI)) == {"kind": "failed", **failure}


@every_way
@pytest.mark.parametrize("route", ["gate", "direct", "scripted"])
async def test_a_route_that_is_not_built_or_not_configured_fails_and_names_the_setting(way, route):
    async with reached(way, ModelExecutor(UnusableRoute(route))) as caller:
        outcome = await caller.call(call_of(HI))
    assert (outcome["code"], outcome["retryable"]) == ("invalid_request", False)
    assert ("WHIPPLETREE_MODEL_SCRIPT" if route == "scripted" else "WHIPPLETREE_MODEL_ROUTE") in outcome[
        "message"
    ]


@every_way
async def test_a_document_that_is_no_call_is_an_invalid_request(way):
    async with reached(way, ModelExecutor(route_of({"answer": "x"}))) as caller:
        for index, odd in enumerate(("", "nonsense", "[]", "{}", '{"prompt":[1],"tools":[]}')):
            outcome = await caller.call(call_of(odd, effect_id=f"e{index}"))
            assert outcome["code"] == "invalid_request"


@every_way
async def test_a_re_sent_call_joins_while_it_runs_and_gets_the_outcome_afterwards(way):
    ticker, route = Ticker(), Counting(delay_ms=700)
    executor = ModelExecutor(route, sleep=ticker.sleep, clock=ticker.clock)
    async with reached(way, executor) as caller, asyncio.timeout(BOUND_S):
        first = asyncio.ensure_future(caller.call(call_of(HI)))
        await ticker.asleep.wait()
        second = asyncio.ensure_future(caller.call(call_of(HI, epoch=2)))
        await until(lambda: executor.work.counts.get("model.joined") == 1)
        ticker.wake.set()
        assert await first == await second == await caller.call(call_of(HI, epoch=2)) == "answer 1"
        assert ticker.sleeping == [0.7]
        assert route.asked == 1


@every_way
async def test_the_same_id_with_another_call_is_an_invalid_request(way):
    route = Counting()
    async with reached(way, ModelExecutor(route)) as caller:
        await caller.call(call_of(HI))
        for changed in (
            call_of(document(user("other"))),
            call_of(HI, invocation_id="other"),
            call_of(HI, turn_id="other"),
            call_of(HI, fixture=True),
        ):
            outcome = await caller.call(changed)
            assert outcome["code"] == "invalid_request"
            assert "changed under the same effect id" in outcome["message"]
    assert route.asked == 1


@every_way
async def test_a_lower_epoch_is_refused_as_stale(way):
    route = Counting()
    async with reached(way, ModelExecutor(route)) as caller:
        await caller.call(call_of(HI, epoch=5))
        outcome = await caller.call(call_of(HI, epoch=4))
        assert outcome["code"] == "invalid_request"
        assert outcome["message"].startswith("stale run:")
    assert route.asked == 1


@every_way
async def test_an_outcome_is_kept_for_30_minutes(way):
    ticker, route = Ticker(), Counting()
    async with reached(way, ModelExecutor(route, clock=ticker.clock)) as caller:
        assert await caller.call(call_of(HI)) == "answer 1"
        ticker.now = 30 * 60 - 1
        assert await caller.call(call_of(HI)) == "answer 1"
        ticker.now = 30 * 60
        assert await caller.call(call_of(HI)) == "answer 2"


@every_way
async def test_a_cancel_ends_the_call_and_everybody_who_joined_and_frees_the_id(way):
    ticker, route = Ticker(), Counting(delay_ms=1)
    executor = ModelExecutor(route, sleep=ticker.sleep)
    async with reached(way, executor) as caller, asyncio.timeout(BOUND_S):
        assert await caller.cancel(call_of(HI)) == "not here"
        calls = [asyncio.ensure_future(caller.call(call_of(HI))) for _ in range(2)]
        await until(lambda: executor.work.counts.get("model.joined") == 1)
        assert await caller.cancel(call_of(HI)) == "stopping"
        for call in calls:
            with pytest.raises(CallAborted):
                await call
        assert await caller.cancel(call_of(HI)) == "not here"
        ticker.wake.set()
        assert await caller.call(call_of(HI)) == "answer 2"
        assert await caller.cancel(call_of(HI)) == "finished"
    assert executor.work.counts["model.aborted"] == 1


@every_way
async def test_a_lost_caller_does_not_stop_the_call(way):
    ticker, route = Ticker(), Counting(delay_ms=1)
    executor = ModelExecutor(route, sleep=ticker.sleep)
    async with reached(way, executor) as caller, asyncio.timeout(BOUND_S):
        lost = asyncio.ensure_future(caller.call(call_of(HI)))
        await ticker.asleep.wait()
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        again = asyncio.ensure_future(caller.call(call_of(HI)))
        await until(lambda: executor.work.counts.get("model.joined") == 1)
        ticker.wake.set()
        assert await again == "answer 1"
    assert route.asked == 1


@every_way
async def test_while_draining_only_what_runs_may_be_joined(way):
    ticker, route = Ticker(), Counting(delay_ms=1)
    executor = ModelExecutor(route, sleep=ticker.sleep)
    async with reached(way, executor) as caller, asyncio.timeout(BOUND_S):
        running = asyncio.ensure_future(caller.call(call_of(HI)))
        await ticker.asleep.wait()
        executor.stop_taking()
        with pytest.raises(Draining):
            await caller.call(call_of(HI, effect_id="new"))
        joined = asyncio.ensure_future(caller.call(call_of(HI)))
        await until(lambda: executor.work.counts.get("model.joined") == 1)
        ticker.wake.set()
        assert await running == await joined == "answer 1"


@every_way
async def test_a_hundred_calls_at_once_of_one_effect_start_one(way):
    ticker, route = Ticker(), Counting(delay_ms=1)
    executor = ModelExecutor(route, sleep=ticker.sleep)
    async with reached(way, executor) as caller, asyncio.timeout(BOUND_S):
        calls = [asyncio.ensure_future(caller.call(call_of(HI))) for _ in range(100)]
        await until(lambda: executor.work.counts.get("model.joined") == 99)
        ticker.wake.set()
        assert set(await asyncio.gather(*calls)) == {"answer 1"}
    assert route.asked == 1


async def test_a_fault_of_a_route_crosses_as_a_fixed_text_and_frees_the_id():
    class Broken(Counting):
        def answer(self, call):
            raise RuntimeError("secret")

    executor = ModelExecutor(Broken())
    async with served(ModelExecutorService(executor)) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await OverGrpc(port.channel, port.metadata).call(call_of(HI))
        assert caught.value.details() == FAULT_TEXT
        assert not executor.work.in_flight()
        executor.route = Counting()
        assert await OverGrpc(port.channel, port.metadata).call(call_of(HI)) == "answer 1"


@pytest.mark.parametrize(
    "changes", [{"effect_id": ""}, {"session_id": ""}, {"tenant_id": "x" * 513}, {"invocation_id": ""}]
)
async def test_ids_that_are_missing_or_too_long_are_invalid(changes):
    async with served(ModelExecutorService(ModelExecutor(Counting()))) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await OverGrpc(port.channel, port.metadata).call(call_of(HI, **changes))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_accepted_and_the_limit_are_said_before_the_answer():
    ticker = Ticker()
    executor = ModelExecutor(route_of({"answer": "x", "delayMs": 60_000}), sleep=ticker.sleep)
    async with served(ModelExecutorService(executor), stop_grace_ms=500) as port, asyncio.timeout(BOUND_S):
        stream = port.channel.unary_stream(
            "/whippletree.v1.ModelExecutor/Call",
            request_serializer=model_executor_pb2.ModelCallRequest.SerializeToString,
            response_deserializer=model_executor_pb2.ModelCallReply.FromString,
        )
        call = stream(request_of(call_of(HI)), metadata=port.metadata)
        metadata = dict(await call.initial_metadata())
        assert metadata["x-whippletree-accepted"] == "1"
        assert int(metadata["x-whippletree-limit-ms"]) == 65_000
        [flying] = executor.work.in_flight()
        assert (flying.kind, flying.effect_id, flying.phase) == ("model", "e", "running")
        ticker.wake.set()
        assert json.loads((await call.read()).outcome.text) == "x"


async def test_describe_names_the_route():
    async with served(ModelExecutorService(ModelExecutor(route_of()))) as port:
        reply = await model_executor_pb2_grpc.ModelExecutorStub(port.channel).Describe(
            model_executor_pb2.ModelDescribeRequest(), metadata=port.metadata
        )
        assert (reply.route, reply.recovers) == ("scripted", True)
