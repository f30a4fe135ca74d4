"""The run loop with the real flow engine: holds, repeated ids, aborts, what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.factory import make_engine
from protocol.canonical import manifest_hash
from tests.gateway.support import gateway, lease
from tests.gateway.virtual_time import virtual_time

PENDING = {"status": "pending"}


def workflow(root: Any, *agents: str) -> dict[str, Any]:
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": "flow",
        "root": root,
        "agents": {name: {"manifestSchemaVersion": 4, "id": name, "capabilities": []} for name in agents},
    }


TWINS = workflow({"parallel": {"one": {"tool": {"name": "t"}}, "two": {"tool": {"name": "t"}}}})
OTHERS = workflow(
    {
        "parallel": {
            "one": {"tool": {"name": "t"}},
            "two": {"chain": [{"agent": "a"}, {"tool": {"name": "t"}}]},
        }
    },
    "a",
)
PAIR = workflow({"chain": [{"agent": "a"}, {"agent": "b"}]}, "a", "b")


async def started(gw: Any, manifest: dict[str, Any], **changes: Any) -> Any:
    checkpoint = {
        "version": 1,
        "engineVersion": "flow-2",
        "manifestHash": manifest_hash(manifest),
        "sessionId": "s1",
        "turnId": "t1",
        "segment": 0,
        "input": "go",
    }
    core = await gw.core.connection()
    given = lease(
        engine="flow",
        manifest=manifest,
        checkpoint=checkpoint,
        routing={"rootManifest": manifest},
        transcript={"cursor": -1},
        **changes,
    )
    core.answer(await core.expect("lease"), given)
    return core


def completed(value: Any) -> dict[str, Any]:
    return {"status": "completed", "outcome": {"value": value}}


@virtual_time
async def test_a_flow_runs_to_its_end_and_reports_neither_state_nor_transcript() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, PAIR)
        for name in "ab":
            intent = await core.expect("effect.intent")
            assert intent["p"]["effect"]["effectId"] == f"t1:0:flow:{name}:agent:-"
            core.answer(intent, completed(name.upper()))
        output = await core.expect("turn.completed")
        assert output["p"] == {"runId": "r1", "status": "completed", "output": "B"}
        assert core.methods() == ["effect.intent", "effect.intent", "turn.completed"]


@virtual_time
async def test_a_workflow_of_another_kind_is_thrown_without_a_code() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, {**PAIR, "workflowSchemaVersion": 3})
        output = await core.expect("turn.failed")
        assert output["p"].keys() == {"runId", "thrown"}
        assert output["p"]["thrown"].keys() == {"message"}
        assert core.methods() == ["turn.failed"]


@virtual_time
async def test_two_holds_of_one_id_both_get_the_outcome() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, TWINS, options={"fixtureModel": False, "holdMs": 5000})
        for _ in range(2):
            core.answer(await core.expect("effect.intent"), PENDING)
        core.tell("effect.resolved", runId="r1", effectId="t1:0:flow:t:tool:-", outcome={"value": 7})
        output = await core.expect("turn.completed")
        assert output["p"]["output"] == {"one": 7, "two": 7}


@virtual_time
async def test_two_holds_of_one_id_both_run_out() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, TWINS, options={"fixtureModel": False, "holdMs": 5000})
        for _ in range(2):
            core.answer(await core.expect("effect.intent"), PENDING)
        output = await core.expect("turn.waiting")
        assert output["p"]["effectIds"] == ["t1:0:flow:t:tool:-"]


@virtual_time
async def test_the_answers_of_one_id_reach_the_branches_that_asked_whatever_their_order() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, OTHERS)
        first = await core.expect("effect.intent")
        core.answer(await core.expect("effect.intent"), completed("other input"))
        second = await core.expect("effect.intent")
        assert first["p"]["effect"]["effectId"] == second["p"]["effect"]["effectId"]
        assert first["p"]["requestHash"] != second["p"]["requestHash"]
        core.refuse(second, "effect_drift", "drift")
        core.answer(first, PENDING)
        output = await core.expect("turn.failed")
        # The second branch failed and the first one waits, not the other way round.
        assert output["p"]["error"] == {"code": "fn.failed", "message": "drift", "path": "@"}
        assert output["p"]["cancelEffectIds"] == ["t1:0:flow:t:tool:-"]


@pytest.mark.spec("flow-engine:17.34")
@virtual_time
async def test_a_cancel_while_the_second_effect_is_awaited_fails_the_flow() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, PAIR, options={"fixtureModel": False, "holdMs": 60_000})
        core.answer(await core.expect("effect.intent"), completed("A"))
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="cancel", message="enough")
        core.refuse(intent, "turn_cancelled", "no")
        output = await core.expect("turn.failed")
        assert output["p"]["status"] == "failed"
        assert output["p"]["error"] == {"code": "fn.failed", "message": "enough", "path": "flow"}


@pytest.mark.spec("flow-engine:17.34")
@virtual_time
async def test_a_flow_that_the_core_takes_back_is_released_and_not_reported() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, PAIR)
        core.answer(await core.expect("effect.intent"), completed("A"))
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r1", reason="shutdown")
        core.refuse(intent, "internal", "stopping")
        release = await core.seen("lease.release")
        assert release["p"] == {"runId": "r1", "reason": "shutdown"}
        assert "turn.failed" not in core.methods()


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@virtual_time
async def test_a_result_that_nests_too_deep_for_the_core_fails_the_turn() -> None:
    stages: Any = {"tool": {"name": "t"}}
    for _ in range(50):
        stages = {"parallel": {"x": stages}}
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, workflow(stages))
        core.answer(await core.expect("effect.intent"), completed(nested("x", 860)))
        core.refuse(await core.expect("turn.completed"), "invalid", "the frame nests too deep")
        output = await core.expect("turn.failed")
        assert "900 levels" in output["p"]["thrown"]["message"]


@virtual_time
async def test_a_result_that_the_core_refuses_for_another_reason_is_not_reported_again() -> None:
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, PAIR)
        for value in ("A", "B"):
            core.answer(await core.expect("effect.intent"), completed(value))
        core.refuse(await core.expect("turn.completed"), "invalid", "no")
        await core.expect("lease")
        assert "turn.failed" not in core.methods()
