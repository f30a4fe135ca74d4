"""A whole stack on the gate route: kills, renewals and cancels cost one call at the gate (model-executor 5 to 7)."""

import asyncio
import time

import jwt
import pytest
import pytest_asyncio

from cli.stack import GATEWAY, MODEL
from tests.common.support import until as soon
from tests.doubles.core_tokens import CoreTokens
from tests.doubles.http import serving
from tests.doubles.model_gate import ModelGateDouble
from tests.system.model_stack import ModelStack

pytestmark = [
    pytest.mark.faults,
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]


class Provider:
    """Answers when the test says so."""

    def __init__(self):
        self.go = asyncio.Event()

    async def __call__(self, body):
        await self.go.wait()
        return "hello"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    gate = ModelGateDouble(provider=Provider())
    async with serving(gate):
        environ = {
            "WHIPPLETREE_MODEL_ROUTE": "gate",
            "NYLORUN_GATES_URL": gate.origin,
        }
        stack = ModelStack(
            tmp_path_factory.mktemp("gate"), environ, {"WHIPPLETREE_CORE_RUN_TOKEN_MS": "3000"}
        )
        gate.authority = CoreTokens(stack.plan.core_url())
        await stack.start()
        yield stack, gate
        gate.provider.go.set()
        await stack.stop()
        await gate.authority.close()


@pytest_asyncio.fixture(loop_scope="module")
async def stack(made):
    stack, gate = made
    for known in (gate.requests, gate.cancels, gate.refusals, gate.acts, gate.authority.claims):
        known.clear()
    gate.provider_calls = 0
    gate.authority.knows_time = True
    gate.provider.go = asyncio.Event()
    for event in (gate.arrived, gate.cancelled, gate.closed_by_client):
        event.clear()
    stack.gate = gate
    mark = len(stack.log)
    yield stack
    print("\n" + stack.tail(min(60, len(stack.log) - mark)))


async def asked(stack, session=None):
    """A turn whose model call is at the gate."""
    session = session or await stack.session()
    await stack.say(session)
    await soon(lambda: stack.gate.provider_calls == 1)
    return session


async def completed(stack, session, *, sent):
    stack.gate.provider.go.set()
    view = await stack.ended(session)
    assert view["status"] == "completed", view
    assert view["lastTurn"]["result"]["output"] == "hello"
    assert stack.gate.provider_calls == 1
    assert len(stack.gate.model_calls) == sent
    assert len({request.headers["idempotency-key"] for request in stack.gate.model_calls}) == 1


async def test_a_call_carries_a_token_of_its_session_turn_agent_and_epoch(stack):
    session = await asked(stack)
    await completed(stack, session, sent=1)
    [claims] = stack.gate.authority.claims
    assert claims["sub"] == session
    assert claims["agt"] == "plain"
    assert stack.gate.model_calls[0].headers["nylorun-tenant"] == claims["iss"]
    assert stack.gate.refusals == []


@pytest.mark.parametrize("who", [(GATEWAY,), (MODEL,), (GATEWAY, MODEL)], ids="+".join)
async def test_killed_processes_join_their_call_at_the_gate(stack, who):
    session = await asked(stack)
    for name in who:
        assert stack.kill(name) is not None
    await soon(lambda: len(stack.gate.model_calls) == 2)
    await completed(stack, session, sent=2)
    epochs = [claims["epc"] for claims in stack.gate.authority.claims]
    assert (epochs[1] > epochs[0]) is (GATEWAY in who)
    assert stack.gate.refusals == []


async def test_a_killed_executor_s_call_goes_on_at_a_replica_added_meanwhile(stack):
    session = await asked(stack)
    async with stack.second_executor():
        stack.kill(MODEL)
        await soon(lambda: len(stack.gate.model_calls) == 2)
        await completed(stack, session, sent=2)


async def test_a_stopped_executor_leaves_its_call_at_the_gate(stack):
    session = await asked(stack)
    stack.stop_process(MODEL)
    await soon(lambda: len(stack.gate.model_calls) == 2)
    await completed(stack, session, sent=2)
    assert stack.gate.cancels == []


async def test_a_token_that_ends_on_the_way_is_replaced_by_the_renewed_one(stack):
    looked_at = asyncio.Event()
    stack.gate.acts.append(looked_at)
    session = await stack.session()
    await stack.say(session)
    await stack.gate.arrived.wait()
    token = stack.gate.model_calls[0].headers["authorization"].partition(" ")[2]
    ends = jwt.decode(token, options={"verify_signature": False})["exp"]
    await asyncio.sleep(ends + 0.5 - time.time())
    looked_at.set()
    await soon(lambda: stack.gate.provider_calls == 1)
    await completed(stack, session, sent=2)
    assert stack.gate.refusals == ["gate_unauthorized"]
    assert len({request.headers["authorization"] for request in stack.gate.model_calls}) == 2


@pytest.mark.parametrize("act", ["reset", "truncate"])
async def test_an_answer_that_is_lost_is_fetched_again_at_no_cost(stack, act):
    if act == "truncate":
        stack.gate.provider.go.set()
    stack.gate.acts.append(act)
    session = await asked(stack)
    await completed(stack, session, sent=2)


async def test_a_cancel_reaches_the_gate_with_the_token_of_the_lease_it_ended(stack):
    session = await asked(stack)
    await stack.cancel(session)
    await soon(lambda: stack.gate.cancels)
    view = await stack.ended(session)
    assert view["status"] == "cancelled"
    await soon(lambda: not stack.gate.calls or all(call.task.done() for call in stack.gate.calls.values()))
    assert stack.gate.cancels == [stack.gate.model_calls[0].headers["idempotency-key"]]
    assert stack.gate.refusals == []


async def test_a_call_whose_lease_was_taken_over_on_the_way_is_stale(stack):
    """The first request lies at the gate while its gateway dies; when it is looked at, another lease lives."""
    stack.gate.authority.knows_time = False
    looked_at = asyncio.Event()
    stack.gate.acts.append(looked_at)
    session = await stack.session()
    await stack.say(session)
    await stack.gate.arrived.wait()
    stack.kill(GATEWAY)
    await soon(lambda: stack.gate.provider_calls == 1)
    looked_at.set()
    await completed(stack, session, sent=2)
    assert stack.gate.refusals == ["run_stale"]
