"""The gate route against a strict gate over a socket (model-executor 5, 6 and 14)."""

import asyncio
import contextlib
import json
import socket

import pytest
from whippletree.v1 import common_pb2

from services.common.calls import WorkKey
from services.model_executor.executor import CallAborted, ModelExecutor
from services.model_executor.gate.client import GateClient
from services.model_executor.gate.route import GateRoute
from tests.common.support import BOUND_S, until
from tests.doubles.http import serving
from tests.doubles.model_gate import PATH, TENANT, Grant, ModelGateDouble
from tests.model_executor.support import call_of, document, user

HI = document(user("hi"))
CANCEL, SHUTDOWN = common_pb2.ABORT_KIND_CANCEL, common_pb2.ABORT_KIND_SHUTDOWN


def gate_call(**changes):
    return call_of(HI, **{"tenant_id": TENANT, "token": "token-1"} | changes)


class Made:
    def __init__(self, executor, double):
        self.executor, self.double = executor, double

    async def ask(self, **changes):
        async with asyncio.timeout(BOUND_S):
            return json.loads(await self.executor.call(gate_call(**changes)))

    async def stop(self, effect_id="e", kind=CANCEL, token="token-1"):
        async with asyncio.timeout(BOUND_S):
            return await self.executor.stop(WorkKey(TENANT, "s", effect_id), kind, token)


@contextlib.asynccontextmanager
async def made(*, base="", silence_s=BOUND_S, double=None, **options):
    async with serving(double or ModelGateDouble()) as gate:
        executor = ModelExecutor(GateRoute(GateClient(gate.origin + base, silence_s=silence_s), **options))
        try:
            yield Made(executor, gate)
        finally:
            await executor.close()


def of(outcome):
    assert outcome["kind"] == "failed"
    return outcome["code"], outcome["retryable"]


class Held:
    """A provider that answers when the test says so."""

    def __init__(self, outcome="hello"):
        self.outcome, self.go, self.asked = outcome, asyncio.Event(), 0

    async def __call__(self, body):
        self.asked += 1
        await self.go.wait()
        return self.outcome


@pytest.mark.spec("model-executor:15.1", "model-executor:15.19")
async def test_a_call_has_five_headers_three_members_and_its_outcome_comes_back_unchanged():
    async with made(base="/prefix/?x=1") as it:
        seen = []

        async def provider(body):
            seen.append(body)
            return {"output": [{"type": "text", "text": "é\ud83d\ude00"}], "odd": None}

        it.double.provider = provider
        outcome = await it.ask(effect_id="t:0:model:x")
        assert outcome == {"output": [{"type": "text", "text": "é😀"}], "odd": None}
        [request] = it.double.requests
        assert (request.method, request.target) == ("POST", PATH)
        own = {"host": it.double.origin.removeprefix("http://"), "connection": "close"}
        assert request.headers == own | {
            "authorization": "Bearer token-1",
            "content-type": "application/json",
            "content-length": str(len(request.body)),
            "nylorun-tenant": TENANT,
            "idempotency-key": "t:0:model:x",
        }
        assert seen == [{"effectId": "t:0:model:x", "invocationId": "inv", "call": json.loads(HI)}]


async def test_the_call_s_own_text_is_sent_and_the_outcome_s_own_text_comes_back():
    odd = '{"prompt":[{"b":1.50,"a":1e2,"c":"\\ud800"}],"tools":[]}'
    async with made() as it:
        it.double.acts.append((200, ' {"outcome" : {"n":2e-05, "s":"\\udfff"} }', {}))
        async with asyncio.timeout(BOUND_S):
            outcome = await it.executor.call(call_of(odd, tenant_id=TENANT, token="token-1"))
        assert odd.encode() in it.double.requests[0].body
        assert json.loads(outcome) == {"n": 2e-05, "s": "\udfff"}


@pytest.mark.spec("model-executor:15.2")
async def test_without_a_token_nothing_is_sent():
    async with made() as it:
        outcome = await it.ask(token=None)
        assert of(outcome) == ("transient", True)
        assert "No run token" in outcome["message"]
        await it.stop(token=None)
        assert it.double.requests == []


@pytest.mark.spec("model-executor:15.3")
async def test_a_closed_port_is_unreachable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{free.getsockname()[1]}"
        executor = ModelExecutor(GateRoute(GateClient(origin)))
        outcome = json.loads(await executor.call(gate_call()))
        await executor.close()
    assert of(outcome) == ("transient", True)
    assert "unreachable" in outcome["message"]
    assert origin in outcome["message"]


async def test_a_connection_cut_while_the_request_is_sent_is_unreachable_too():
    big = document(user("x" * (24 * 1024 * 1024)))
    async with made() as it:
        it.double.acts.append("reset early")
        async with asyncio.timeout(BOUND_S):
            outcome = json.loads(await it.executor.call(call_of(big, tenant_id=TENANT, token="token-1")))
        assert of(outcome) == ("transient", True)
        assert "unreachable" in outcome["message"]


@pytest.mark.spec("model-executor:15.4")
@pytest.mark.spec("model-executor:15.5")
@pytest.mark.parametrize("act", ["reset", "truncate"])
async def test_a_connection_lost_after_the_request_may_have_been_billed(act):
    async with made() as it:
        it.double.acts.append(act)
        outcome = await it.ask()
        assert of(outcome) == ("transient", True)
        assert "lost mid-call" in outcome["message"]
        assert "may have billed" in outcome["message"]
        assert len(it.double.requests) == 1


@pytest.mark.spec("model-executor:15.6")
async def test_a_silent_gate_is_given_up_after_the_timeout():
    async with made(silence_s=0.15) as it:
        it.double.acts.append("silent")
        outcome = await it.ask()
        assert of(outcome) == ("transient", True)
        assert "sent nothing for 0.15 s" in outcome["message"]
        await it.double.closed_by_client.wait()


async def test_a_gate_that_does_not_read_the_request_is_silent():
    class Deaf(ModelGateDouble):
        async def before_body(self, request, wire):
            await asyncio.Event().wait()

    big = document(user("x" * (24 * 1024 * 1024)))
    async with made(silence_s=0.3, double=Deaf()) as it, asyncio.timeout(BOUND_S):
        outcome = json.loads(await it.executor.call(call_of(big, tenant_id=TENANT, token="token-1")))
        assert of(outcome) == ("transient", True)
        assert "sent nothing" in outcome["message"]


@pytest.mark.spec("model-executor:15.7")
async def test_a_gate_that_sends_a_byte_now_and_then_is_waited_for():
    async with made(silence_s=0.3, double=ModelGateDouble(drip_s=0.12)) as it:
        it.double.acts.append("drip")
        assert await it.ask() == "hello"


@pytest.mark.spec("model-executor:15.8")
@pytest.mark.parametrize("body", ["{}", "not json", "[]", "", '"outcome"', '{"outcome":'])
async def test_an_answer_without_an_outcome_is_not_to_be_retried(body):
    async with made() as it:
        it.double.acts.append((200, body, {}))
        assert of(await it.ask()) == ("transient", False)


@pytest.mark.spec("model-executor:15.9")
async def test_outcomes_pass_unchanged_even_odd_ones():
    failure = {"kind": "failed", "code": "rate_limited", "message": "m", "retryable": True, "more": [1]}
    async with made() as it:
        for index, outcome in enumerate((failure, None, 7, [])):
            it.double.acts.append((200, json.dumps({"x": 1, "outcome": outcome}), {}))
            assert await it.ask(effect_id=f"e{index}") == outcome


def error_body(code, message):
    return json.dumps({"error": {"code": code, "message": message}})


@pytest.mark.spec("model-executor:15.10", "model-executor:15.11", "model-executor:15.12")
@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (401, error_body("gate_unauthorized", "nope"), "auth", "refused the run token: nope"),
        (401, "?", "auth", "refused the run token"),
        (409, error_body("run_stale", "over"), "invalid_request", "stale run: over"),
        (
            409,
            error_body("gate_conflict", "held"),
            "invalid_request",
            "changed under the same effect id: held",
        ),
        (409, "<html>", "invalid_request", "changed under the same effect id"),
        (400, error_body("invalid_request", "too big"), "invalid_request", "too big"),
        (400, "", "invalid_request", "refused the request"),
    ],
)
async def test_refusals_are_not_to_be_retried(status, body, code, says):
    async with made() as it:
        it.double.acts.append((status, body, {}))
        outcome = await it.ask()
        assert of(outcome) == (code, False)
        assert says in outcome["message"]
        assert status != 400 or not body or outcome["message"] == says


@pytest.mark.parametrize("status", [400, 401, 409, 503])
async def test_a_gate_that_repeats_the_run_token_tells_nobody(status):
    async with made() as it:
        it.double.acts.append((status, error_body("x", "no token-1 here"), {}))
        outcome = await it.ask()
        assert outcome["message"].endswith("no [redacted] here")


@pytest.mark.spec("model-executor:15.13")
@pytest.mark.parametrize("status", [204, 302, 307, 403, 404, 421, 429, 500, 503])
async def test_any_other_status_is_transient_after_one_request(status):
    async with made() as it:
        it.double.acts.append((status, "", {"location": "/elsewhere", "retry-after": "1"}))
        outcome = await it.ask()
        assert of(outcome) == ("transient", True)
        assert f"answered {status}" in outcome["message"]
        assert len(it.double.requests) == 1


async def test_the_double_itself_refuses_what_a_gate_refuses():
    async with made() as it:
        it.double.tokens |= {
            "old": Grant(live=False),
            "bad": Grant(valid=False),
            "other": Grant(session="s2"),
        }
        assert of(await it.ask(effect_id="1", token="bad"))[0] == "auth"
        assert "stale run:" in (await it.ask(effect_id="2", token="old"))["message"]
        assert "Tenant" in (await it.ask(effect_id="3", tenant_id="tn_x"))["message"]
        assert await it.ask(effect_id="4") == "hello"
        conflict = await it.ask(effect_id="4", session_id="s2", token="other")
        assert "changed under the same effect id" in conflict["message"]
        assert it.double.provider_calls == 1


@pytest.mark.spec("model-executor:15.14", "model-executor:15.18")
async def test_a_cancel_closes_the_connection_and_sends_one_cancel_to_the_encoded_path():
    effect_id = "t:0:model:d1/inv 1'(x)"
    async with made() as it:
        it.double.provider = Held()
        pending = asyncio.ensure_future(it.ask(effect_id=effect_id))
        await it.double.arrived.wait()
        await it.stop(effect_id)
        with pytest.raises(CallAborted):
            await pending
        assert it.double.cancels == [effect_id]
        cancel = it.double.requests[-1]
        assert cancel.target == f"{PATH}/t%3A0%3Amodel%3Ad1%2Finv%201'(x)/cancel"
        assert cancel.headers["content-length"] == "0"
        assert cancel.headers["nylorun-tenant"] == TENANT
        assert it.double.calls == {}


async def test_a_caller_that_goes_away_closes_the_connection_and_the_gate_keeps_the_call():
    async with made() as it, asyncio.timeout(BOUND_S):
        provider = it.double.provider = Held()
        pending = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        await until(lambda: provider.asked)
        pending.cancel()
        await it.double.closed_by_client.wait()
        again = asyncio.ensure_future(it.ask())
        await until(lambda: len(it.double.model_calls) == 2)
        provider.go.set()
        assert await again == "hello"
        assert it.double.provider_calls == 1
        assert it.double.cancels == []


async def test_two_callers_share_one_request_and_one_may_go():
    async with made() as it, asyncio.timeout(BOUND_S):
        provider = it.double.provider = Held()
        first, second = (asyncio.ensure_future(it.ask()) for _ in range(2))
        await until(lambda: provider.asked and it.executor.work.counts.get("model.joined"))
        first.cancel()
        provider.go.set()
        assert await second == "hello"
        assert len(it.double.model_calls) == 1


@pytest.mark.spec("model-executor:15.17")
async def test_a_cancel_that_nobody_answers_is_given_up():
    async with made() as it:
        it.double._server.close()
        assert await it.stop() == "not here"


@pytest.mark.spec("model-executor:15.20")
async def test_proxies_of_the_environment_are_ignored(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with made() as it:
        assert await it.ask() == "hello"


@pytest.mark.spec("model-executor:15.31")
async def test_a_fixture_call_asks_the_gate_for_nothing():
    async with made() as it:
        outcome = await it.ask(fixture=True)
        assert outcome["output"][0]["text"] == "Hello from the fixture model."
        assert it.double.requests == []


async def test_each_call_has_its_own_connection():
    async with made() as it:
        for index in range(3):
            await it.ask(effect_id=f"e{index}")
        assert it.double.connections == 3


async def test_only_outcomes_of_the_gate_are_kept():
    async with made() as it:
        it.double.acts.append((503, "", {}))
        assert of(await it.ask()) == ("transient", True)
        assert await it.ask() == "hello"
        it.double.forget_all()
        assert await it.ask() == "hello"
        assert it.double.provider_calls == 1


@pytest.mark.parametrize(("rejoins", "requests"), [(0, 1), (1, 2)])
async def test_a_lost_answer_is_collected_under_the_same_key_when_that_is_asked_for(rejoins, requests):
    async with made(rejoins=rejoins) as it:
        it.double.acts.append("truncate")
        outcome = await it.ask()
        assert (outcome == "hello") is bool(rejoins)
        assert len(it.double.requests) == requests
        assert it.double.provider_calls == 1


@pytest.mark.parametrize("renews", [False, True])
async def test_a_call_with_a_refused_token_is_sent_once_more_when_a_newer_one_came(renews):
    async with made(renews=renews) as it, asyncio.timeout(BOUND_S):
        it.double.tokens |= {"token-2": Grant(epoch=2)}
        answer = asyncio.Event()
        plain = it.double._call

        async def late(request, wire, act):
            if request.headers["authorization"] == "Bearer token-0":
                await answer.wait()
            await plain(request, wire, act)

        it.double._call = late
        pending = asyncio.ensure_future(it.ask(token="token-0"))
        await it.double.arrived.wait()
        assert it.executor.renew(TENANT, "s", "token-2")
        answer.set()
        outcome = await pending
        assert (outcome == "hello") is renews
        assert len(it.double.requests) == (2 if renews else 1)
        assert not it.executor.renew(TENANT, "s", "token-3")


async def test_a_20_mib_call_passes_and_one_over_the_gate_s_limit_is_named():
    async with made() as it, asyncio.timeout(BOUND_S):
        for mib, fits in ((20, True), (33, False)):
            text = document(user("x" * (mib * 1024 * 1024)))
            call = call_of(text, tenant_id=TENANT, token="token-1", effect_id=f"e{mib}")
            outcome = json.loads(await it.executor.call(call))
            assert (outcome == "hello") if fits else (of(outcome) == ("invalid_request", False))
