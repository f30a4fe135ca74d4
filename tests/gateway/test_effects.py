from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Completed,
    HostError,
    Pending,
    Uncertain,
)
from gateway.executors.contract import RunAborted
from protocol.jsjson import Parsed
from tests.gateway.support import (
    NEVER,
    Refuse,
    at_once,
    effect,
    failing,
    for_ever,
    gateway,
    logs,
    one_after_another,
    settle,
    until_aborted,
)
from tests.gateway.virtual_time import virtual_time

EXECUTE = {"status": "execute"}


def completed(value: Any) -> dict[str, Any]:
    return {"status": "completed", "outcome": {"value": value}}


def answer_of(gw: Any, effect_id: str) -> Any:
    answers = [event for event in gw.engines[0].events if isinstance(event, tuple)]
    return next(answer for name, answer in answers if name == effect_id)


# Asking


@virtual_time
async def test_core_may_complete_an_effect_itself():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        assert intent["p"] == {
            "runId": "r1",
            "effect": effect("e1").document,
            "requestHash": effect("e1").request_hash,
        }
        core.answer(
            intent, {"status": "completed", "outcome": {"value": {"n": 1.5}, "statePatch": {"k": None}}}
        )
        await core.expect("turn.completed")
        answer = answer_of(gw, "e1")
        assert answer == Completed({"value": {"n": 1.5}, "statePatch": {"k": None}}, plain=False)
        assert gw.fake.executions == []


@virtual_time
async def test_an_uncertain_effect_is_the_engines_to_judge():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), {"status": "uncertain"})
        output = await core.expect("turn.waiting")
        assert output["p"] == {"runId": "r1", "status": "uncertain", "effectIds": ["e1"]}


@virtual_time
async def test_every_intent_of_a_step_is_sent_in_order_before_any_answer():
    effects = [effect(f"e{number}") for number in range(5)]
    async with gateway(at_once(*effects)) as gw:
        core = await gw.leased()
        await settle()
        intents = [frame for frame in core.inbox if frame.get("m") == "effect.intent"]
        assert [frame["p"]["effect"]["effectId"] for frame in intents] == ["e0", "e1", "e2", "e3", "e4"]
        for frame in reversed(intents):
            core.answer(frame, completed(frame["p"]["effect"]["effectId"]))
        output = await core.expect("turn.completed")
        assert output["p"]["output"] == {f"e{number}": f"e{number}" for number in range(5)}


@pytest.mark.parametrize("code", ["effect_drift", "run_not_held", "invalid", "internal", "turn_cancelled"])
@virtual_time
async def test_a_refused_intent_fails_the_effect_and_not_the_run(code):
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.refuse(await core.expect("effect.intent"), code, "why")
        output = await core.expect("turn.failed")
        assert answer_of(gw, "e1") == HostError(code, "why")
        assert "thrown" not in output["p"]


@virtual_time
async def test_an_intent_that_the_wire_does_not_allow_fails_the_effect_here():
    async with gateway(one_after_another(effect("x" * 513))) as gw:
        core = await gw.leased()
        output = await core.expect("turn.failed")
        assert output["p"]["status"] == "failed"
        assert core.methods() == ["turn.failed"]


# Executing


@virtual_time
async def test_an_executed_value_is_reported_and_cores_answer_counts():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = {"kind": "completed", "output": "mine"}
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        report = await core.expect("effect.outcome")
        assert report["p"] == {
            "runId": "r1",
            "effectId": "e1",
            "value": {"kind": "completed", "output": "mine"},
        }
        core.answer(report, completed("core's"))
        assert (await core.expect("turn.completed"))["p"]["output"] == {"e1": "core's"}
        (execution,) = gw.fake.executions
        assert not execution.rejoin


@virtual_time
async def test_null_is_a_value():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = None
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        assert (await core.expect("effect.outcome"))["p"]["value"] is None


@virtual_time
async def test_a_value_that_is_not_plain_arrives_unchanged():
    value = {"half": 0.5, "lone": "\ud800", "10": 1, "2": 2}

    async def execute(*_: Any) -> Parsed:
        return Parsed(value, plain=False)

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = execute
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await core.expect("effect.outcome", value=value)


@virtual_time
async def test_rejoin_reaches_the_executor():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), {**EXECUTE, "rejoin": True})
        await core.expect("effect.outcome")
        assert gw.fake.executions[0].rejoin


@virtual_time
async def test_a_failed_execution_is_reported_as_an_error_and_becomes_uncertain():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = failing("socket hang up")
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        report = await core.expect("effect.outcome")
        assert report["p"] == {"runId": "r1", "effectId": "e1", "error": "socket hang up"}
        core.answer(report, {"status": "uncertain"})
        await core.expect("turn.waiting", status="uncertain")
        assert answer_of(gw, "e1") == Uncertain()


@virtual_time
async def test_a_fault_of_an_executor_fails_its_effect_without_a_word_of_the_fault():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = KeyError("secret")
        core = await gw.leased()
        with logs() as captured:
            core.answer(await core.expect("effect.intent"), EXECUTE)
            report = await core.expect("effect.outcome")
        assert "secret" not in report["p"]["error"]
        assert [entry["event"] for entry in captured] == ["harness_effect_failed"]


@pytest.mark.spec("harness-api:10.15")
@virtual_time
async def test_a_value_refused_as_cancelled_is_followed_by_one_error_report():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.refuse(await core.expect("effect.outcome"), "turn_cancelled", "not active")
        report = await core.expect("effect.outcome")
        assert report["p"] == {"runId": "r1", "effectId": "e1", "error": "not active"}
        core.refuse(report, "turn_cancelled", "still not")
        await core.expect("turn.failed")
        assert answer_of(gw, "e1") == HostError("turn_cancelled", "still not")
        assert core.methods().count("effect.outcome") == 2


@pytest.mark.spec("harness-api:10.15")
@virtual_time
async def test_a_value_refused_for_lost_ownership_is_not_reported_again():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.refuse(await core.expect("effect.outcome"), "ownership_lost", "another")
        output = await core.expect("turn.failed")
        assert answer_of(gw, "e1") == HostError("ownership_lost", "another")
        assert "thrown" not in output["p"]
        assert core.methods().count("effect.outcome") == 1


@virtual_time
async def test_a_value_that_core_cannot_be_sent_is_reported_as_an_error(monkeypatch):
    monkeypatch.setattr("gateway.harness_api.channel.Channel._too_large", lambda self, text: "xxxx" in text)
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = "xxxx"
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        report = await core.expect("effect.outcome")
        assert "larger than" in report["p"]["error"]


@virtual_time
async def test_a_fault_of_ours_while_an_effect_is_reported_ends_its_run_and_is_logged():
    async def not_json(*_):
        return Parsed(object(), plain=True)

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = not_json
        core = await gw.leased()
        with logs() as captured:
            core.answer(await core.expect("effect.intent"), EXECUTE)
            await core.expect("turn.failed")
        assert answer_of(gw, "e1") == HostError(None, "The harness failed to execute the effect")
        assert "harness_task_failed" in [entry["event"] for entry in captured]


# Aborts

ABORTS = {
    "cancel": "Turn cancelled",
    "shutdown": "The harness is stopping",
    "deadline": "The advance ran past its deadline",
    "ownership.lost": "Ownership lost",
}


@pytest.mark.parametrize(("reason", "message"), ABORTS.items())
@virtual_time
async def test_an_abort_while_executing_is_reported_and_the_report_decides(reason, message):
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        core.tell("cancel", runId="r1", reason=reason)
        report = await core.expect("effect.outcome")
        assert report["p"]["error"] == message
        core.answer(report, {"status": "uncertain"})
        if reason in ("cancel", "deadline"):
            await core.expect("turn.waiting", status="uncertain")
        else:
            await core.seen("lease.release", reason=reason)
        assert gw.engines[0].events[-2:] == [Abort(AbortKind(reason), message), ("e1", Uncertain())]


@virtual_time
async def test_cores_own_message_is_the_aborts_message():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.tell("cancel", runId="r1", reason="cancel", message="The user left")
        assert (await core.expect("effect.outcome"))["p"]["error"] == "The user left"


@virtual_time
async def test_a_refused_report_of_an_aborted_run_gives_the_aborts_reason():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        core.tell("cancel", runId="r1", reason="cancel")
        core.refuse(await core.expect("effect.outcome"), "turn_cancelled")
        await core.expect("turn.failed", status="cancelled")
        assert answer_of(gw, "e1") == AbortedEffect(Abort(AbortKind.CANCEL, "Turn cancelled"))


@virtual_time
async def test_a_call_that_ends_in_spite_of_a_deadline_is_recorded():
    finish = asyncio.Event()

    async def finishes(*_: Any) -> Parsed:
        await finish.wait()
        return Parsed("late", plain=True)

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = finishes
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.tell("cancel", runId="r1", reason="deadline")
        finish.set()
        core.answer(await core.expect("effect.outcome", value="late"), completed("late"))
        await core.expect("turn.completed")


@pytest.mark.spec("harness-api:10.16")
@pytest.mark.parametrize("kind", ["model", "tool"])
@virtual_time
async def test_a_recoverable_call_is_left_for_the_next_run_when_the_harness_stops(kind):
    async with gateway(one_after_another(effect("e1", kind))) as gw:
        gw.fake.model_recovers = gw.fake.tools_recover = True
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        await gw.link.stop(10.0)
        assert core.methods() == ["effect.intent", "lease.release"]
        assert core.frames[-1]["p"] == {"runId": "r1", "reason": "shutdown"}
        assert gw.fake.cancelled == []


@pytest.mark.spec("harness-api:10.16")
@virtual_time
async def test_a_call_that_does_not_recover_is_reported_before_the_release():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        gw.core.auto["effect.outcome"] = {"status": "uncertain"}
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        await gw.link.stop(10.0)
        assert core.methods() == ["effect.intent", "effect.outcome", "lease.release"]


@virtual_time
async def test_a_recoverable_failure_without_a_stop_is_reported():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        gw.fake.model_recovers = True
        gw.fake.behaviours["e1"] = failing("gone")
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        assert (await core.expect("effect.outcome"))["p"]["error"] == "gone"


@virtual_time
async def test_a_recoverable_call_that_fails_while_stopping_is_not_reported():
    async def fails_late(effect: Any, run: Any, signal: Any, rejoin: bool) -> Parsed:
        await signal.wait()
        raise failing("line cut")

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.tools_recover = True
        gw.fake.behaviours["e1"] = fails_late
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        core.tell("cancel", runId="r1", reason="shutdown")
        await settle()
        assert core.methods() == ["effect.intent", "lease.release"]


@pytest.mark.spec("harness-api:10.17")
@pytest.mark.parametrize(
    ("answer", "method", "status"),
    [
        ({"status": "uncertain"}, "turn.waiting", "uncertain"),
        (Refuse("turn_cancelled"), "turn.failed", "cancelled"),
    ],
)
@virtual_time
async def test_a_cancelled_remote_call_is_cancelled_at_its_gate_before_the_report(answer, method, status):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.tools_recover = True
        gw.core.auto["effect.outcome"] = lambda params: seen.append(list(gw.fake.cancelled)) or answer
        seen: list[list[str]] = []
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        core.tell("cancel", runId="r1", reason="cancel")
        await core.expect(method, status=status)
        assert seen == [["e1"]]


@virtual_time
async def test_a_recoverable_model_call_is_not_cancelled_at_the_tool_gate():
    async with gateway(one_after_another(effect("e1", "model"))) as gw:
        gw.fake.model_recovers = gw.fake.tools_recover = True
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        core.tell("cancel", runId="r1", reason="cancel")
        await core.expect("effect.outcome")
        assert gw.fake.cancelled == []


@virtual_time
async def test_only_the_first_abort_counts():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.tell("cancel", runId="r1", reason="deadline")
        core.tell("cancel", runId="r1", reason="shutdown")
        core.answer(await core.expect("effect.outcome"), {"status": "uncertain"})
        await core.expect("turn.waiting")
        assert "lease.release" not in core.methods()


@virtual_time
async def test_an_aborted_run_asks_for_nothing_more():
    async with gateway(one_after_another(effect("e1"), effect("e2"))) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="cancel")
        core.answer(intent, completed("still taken"))
        await core.expect("turn.failed", status="cancelled")
        assert core.methods() == ["effect.intent", "turn.failed"]
        assert answer_of(gw, "e2") == AbortedEffect(Abort(AbortKind.CANCEL, "Turn cancelled"))


@virtual_time
async def test_an_intent_refused_after_an_abort_gives_the_aborts_reason():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="cancel")
        core.refuse(intent, "turn_cancelled")
        await core.expect("turn.failed", status="cancelled")


@virtual_time
async def test_execute_for_an_aborted_run_is_executed_with_the_abort_in_force():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="cancel")
        core.answer(intent, EXECUTE)
        assert (await core.expect("effect.outcome"))["p"]["error"] == "Turn cancelled"


# Holding


def held(**options: Any) -> dict[str, Any]:
    return {"options": {"holdMs": 200, **options}}


def resolve(core: Any, effect_id: str, value: Any, run_id: str = "r1") -> None:
    core.tell("effect.resolved", runId=run_id, effectId=effect_id, outcome={"value": value})


@virtual_time
async def test_without_a_hold_a_pending_effect_is_pending_at_once():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await core.expect("turn.waiting", status="waiting", effectIds=["e1"])
        assert answer_of(gw, "e1") == Pending()


@pytest.mark.parametrize("kind", ["tool", "hook", "fn", "verify"])
@virtual_time
async def test_a_held_effect_is_completed_by_its_outcome_in_the_same_run(kind):
    async with gateway(one_after_another(effect("e1", kind))) as gw:
        core = await gw.leased(**held())
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await asyncio.sleep(0.199)
        resolve(core, "e1", "soon")
        assert (await core.expect("turn.completed"))["p"]["output"] == {"e1": "soon"}


@pytest.mark.spec("harness-api:10.19")
@virtual_time
async def test_an_outcome_that_comes_before_pending_is_taken_at_once():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held())
        intent = await core.expect("effect.intent")
        resolve(core, "e1", "early")
        core.answer(intent, {"status": "pending"})
        before = asyncio.get_running_loop().time()
        assert (await core.expect("turn.completed"))["p"]["output"] == {"e1": "early"}
        assert asyncio.get_running_loop().time() == before
        assert core.methods() == ["effect.intent", "turn.completed"]


@pytest.mark.spec("harness-api:10.20")
@virtual_time
async def test_an_outcome_after_the_hold_starts_nothing_and_the_next_run_brings_it():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held())
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        started = asyncio.get_running_loop().time()
        output = await core.expect("turn.waiting")
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.2)
        await asyncio.sleep(0.4)
        resolve(core, "e1", "late")
        core.answer(output, {})
        outcomes = [
            {
                "effectId": name,
                "requestHash": effect(name).request_hash,
                "outcome": {"value": "late", "statePatch": {"a": 1}},
            }
            for name in ("e0", "e1")
        ]
        await gw.leased(run_id="r2", outcomes=outcomes)
        await core.expect("effect.intent", runId="r2")
        recorded = gw.segments[1].outcomes
        assert [outcome.effect_id for outcome in recorded.values()] == ["e0", "e1"]
        assert recorded["e1"].request_hash == effect("e1").request_hash
        assert recorded["e1"].outcome == {"value": "late", "statePatch": {"a": 1}}


@pytest.mark.spec("harness-api:10.20")
@virtual_time
async def test_a_spent_budget_leaves_nothing_to_hold():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held(yieldAfter={"ms": 500}))
        intent = await core.expect("effect.intent")
        await asyncio.sleep(0.6)
        before = asyncio.get_running_loop().time()
        core.answer(intent, {"status": "pending"})
        await core.expect("turn.waiting")
        assert asyncio.get_running_loop().time() == before


@virtual_time
async def test_a_hold_ends_with_the_budget_of_the_run():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held(holdMs=10_000, yieldAfter={"ms": 500}))
        started = asyncio.get_running_loop().time()
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await core.expect("turn.waiting")
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.5)


@virtual_time
async def test_the_local_limit_shortens_a_hold():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.host.hold_limit_ms = 50
        core = await gw.leased(**held())
        started = asyncio.get_running_loop().time()
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await core.expect("turn.waiting")
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.05)


@pytest.mark.spec("harness-api:10.20")
@pytest.mark.parametrize("reason", ["cancel", "deadline"])
@virtual_time
async def test_an_abort_ends_a_hold_at_once(reason):
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held(holdMs=60_000))
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await settle()
        before = asyncio.get_running_loop().time()
        core.tell("cancel", runId="r1", reason=reason)
        await core.expect("turn.failed", status="cancelled")
        assert asyncio.get_running_loop().time() == before
        assert isinstance(gw.engines[0].events[-2], Abort)
        assert isinstance(answer_of(gw, "e1"), AbortedEffect)


@virtual_time
async def test_pending_for_an_aborted_run_is_the_abort_when_it_could_be_held():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased(**held())
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="cancel")
        core.answer(intent, {"status": "pending"})
        await core.expect("turn.failed", status="cancelled")


@pytest.mark.spec("harness-api:10.21")
@pytest.mark.parametrize("kind", ["agent", "delegation", "model"])
@virtual_time
async def test_effects_that_no_action_answers_are_never_held(kind):
    async with gateway(one_after_another(effect("e1", kind))) as gw:
        core = await gw.leased(**held(holdMs=60_000))
        before = asyncio.get_running_loop().time()
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await core.expect("turn.waiting")
        assert asyncio.get_running_loop().time() == before


@virtual_time
async def test_several_effects_of_a_run_are_held_at_once():
    async with gateway(at_once(effect("e1"), effect("e2"), effect("e3"))) as gw:
        core = await gw.leased(**held())
        for _ in range(3):
            core.answer(await core.expect("effect.intent"), {"status": "pending"})
        await settle()
        resolve(core, "e3", 3)
        resolve(core, "e1", 1)
        resolve(core, "unknown", 0)
        resolve(core, "e2", 2, run_id="r9")
        await core.expect("turn.waiting", effectIds=["e2"])


# The end of a process


@virtual_time
async def test_a_call_that_ignores_everything_is_cancelled_at_the_end_of_the_process():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = for_ever
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        await gw.link.stop(1.0)
        assert await gw.host.tasks.close(1.0)
        assert len(gw.host.tasks) == 0


# Cancellation at every point

POINTS = ["asking", "holding", "executing", "reporting-value", "reporting-error"]


@pytest.mark.parametrize("recovers", [False, True])
@pytest.mark.parametrize("reason", list(ABORTS))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["model", "tool"])
@virtual_time
async def test_an_abort_at_any_point_ends_the_run_with_one_end(kind, point, reason, recovers):
    if point == "holding":
        kind = "tool"
    async with gateway(one_after_another(effect("e1", kind))) as gw:
        gw.fake.model_recovers = gw.fake.tools_recover = recovers
        gw.core.auto["effect.outcome"] = NEVER if point.startswith("reporting") else {"status": "uncertain"}
        gw.fake.behaviours["e1"] = {
            "executing": until_aborted,
            "reporting-error": failing("broken"),
        }.get(point, "value")
        core = await gw.leased(**held(holdMs=60_000))
        intent = await core.expect("effect.intent")
        if point == "holding":
            core.answer(intent, {"status": "pending"})
        elif point != "asking":
            core.answer(intent, EXECUTE)
        await settle()
        (run,) = gw.link.facts()
        assert run["effects"] == {"e1": point}
        core.tell("cancel", runId="r1", reason=reason)
        await settle()
        if point == "asking":
            core.answer(intent, completed("x"))
        for frame in core.frames:
            if frame.get("m") == "effect.outcome" and point.startswith("reporting"):
                core.answer(frame, {"status": "uncertain"})
        await settle()
        ends = [name for name in core.methods() if not name.startswith("effect.")]
        assert len(ends) == 1
        assert (ends == ["lease.release"]) is (reason in ("shutdown", "ownership.lost"))
        for frame in list(core.inbox):
            if frame.get("m", "").startswith("turn."):
                core.answer(frame, {})
        await settle()
        assert gw.link.facts() == []
        assert len(gw.host.tasks) == 0


@pytest.mark.parametrize("point", POINTS)
@virtual_time
async def test_a_lost_connection_at_any_point_ends_the_run_and_leaves_no_task(point):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["effect.outcome"] = NEVER
        gw.fake.behaviours["e1"] = {
            "executing": until_aborted,
            "reporting-error": failing("broken"),
        }.get(point, "value")
        core = await gw.leased(**held(holdMs=60_000))
        intent = await core.expect("effect.intent")
        if point == "holding":
            core.answer(intent, {"status": "pending"})
        elif point != "asking":
            core.answer(intent, EXECUTE)
        await settle()
        with logs() as captured:
            core.close()
            await gw.core.connection(2)
        assert len(gw.host.tasks) == 0
        assert isinstance(answer_of(gw, "e1"), AbortedEffect)
        assert {entry["event"] for entry in captured} <= {
            "harness_release_failed",
            "harness_connection_lost",
            "harness_connected",
        }


@pytest.mark.parametrize("point", POINTS)
@virtual_time
async def test_the_end_of_the_process_at_any_point_leaves_no_task(point):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["effect.outcome"] = NEVER
        gw.fake.behaviours["e1"] = {"executing": for_ever, "reporting-error": failing("broken")}.get(
            point, "value"
        )
        core = await gw.leased(**held(holdMs=60_000))
        intent = await core.expect("effect.intent")
        if point == "holding":
            core.answer(intent, {"status": "pending"})
        elif point != "asking":
            core.answer(intent, EXECUTE)
        await settle()
        assert await gw.host.tasks.close(1.0)
        await settle()
        assert gw.link.facts() == []


@virtual_time
async def test_an_abort_that_an_executor_raises_by_itself_is_still_an_abort():
    async def raises(*_: Any) -> Parsed:
        raise RunAborted(Abort(AbortKind.SHUTDOWN, "the stream is gone"))

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = raises
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        assert (await core.expect("effect.outcome"))["p"]["error"] == "the stream is gone"
