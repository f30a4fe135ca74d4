from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import EngineRefused
from protocol.canonical import manifest_hash
from tests.engine.support import HELPER, PLAIN, Player, call, calls, checkpoint, following, start


def refusal(
    manifest: Any, given: Any, session_tools: list[Any] | None = None, entries: Any = None
) -> EngineRefused:
    player = Player(manifest, given, session_tools=session_tools, transcript=entries)
    with pytest.raises(EngineRefused) as refused:
        player.start()
    assert not player.asked
    assert not player.observed
    return refused.value


@pytest.mark.spec("agent-engine:23.1")
@pytest.mark.parametrize(
    "changes",
    [
        {"engineVersion": "hosted-2"},
        {"engineVersion": ["hosted-3"]},
        {"version": 2},
        {"version": True},
        {"manifestHash": "0" * 64},
        {"sessionId": ""},
        {"segment": -1},
        {"turnId": 7},
    ],
)
def test_a_checkpoint_of_another_engine_or_manifest_is_refused(changes: dict[str, Any]) -> None:
    assert refusal(PLAIN, {**checkpoint(PLAIN), **changes}).code == "execution.incompatible"


@pytest.mark.spec("agent-engine:23.2")
def test_the_order_of_manifest_keys_does_not_change_the_hash() -> None:
    metadata = {"_c": 4, "$d": 5, "10": 6, "9": 7, "a": 2, "A": 3, "a-b": 8, "ab": 9, "B": 1}
    manifest: dict[str, Any] = {"manifestSchemaVersion": 4, "id": "v", "capabilities": []}
    expected = "ec226a7bae99f5a9ed7e1f43ad1cb7c9db435171686f5ab5706f998c43bb5d46"
    assert manifest_hash({**manifest, "metadata": metadata}) == expected
    assert manifest_hash({"metadata": dict(reversed(metadata.items())), **manifest}) == expected


def test_an_invalid_manifest_is_refused_without_a_code() -> None:
    assert refusal({**PLAIN, "extra": 1}, checkpoint(PLAIN)).code is None


def test_the_manifest_is_checked_before_the_checkpoint() -> None:
    assert refusal({**PLAIN, "extra": 1}, {}).code is None


@pytest.mark.parametrize("member", ["manifestHash", "agentId", "executionId"])
def test_a_state_of_someone_else_is_refused(member: str) -> None:
    state = {**start(PLAIN).model("ok").state, member: "other"}
    given = checkpoint(PLAIN, "again", turn="T2", state=state)
    assert refusal(PLAIN, given).code == "execution.incompatible"


@pytest.mark.parametrize("state", [None, [], "x", 5])
def test_a_state_that_is_no_object_is_invalid(state: Any) -> None:
    given = checkpoint(PLAIN, "again", turn="T2", state=state)
    assert refusal(PLAIN, given, entries=[]).code == "execution.invalid-state"


def test_a_state_made_under_another_output_schema_is_refused() -> None:
    state = {**start(PLAIN).model("ok").state, "outputContract": {"type": "object"}}
    given = checkpoint(PLAIN, "again", turn="T2", state=state)
    assert refusal(PLAIN, given).code == "execution.incompatible"


def test_a_legacy_member_of_the_state_is_dropped() -> None:
    state = {**start(PLAIN).model("ok").state, "executionVersion": 7}
    player = Player(PLAIN, checkpoint(PLAIN, "again", turn="T2", state=state)).start().model("ok")
    assert "executionVersion" not in player.state


def test_session_memory_that_is_absent_counts_as_empty() -> None:
    state = start(PLAIN).model("ok").state
    del state["state"]
    player = Player(PLAIN, checkpoint(PLAIN, "again", turn="T2", state=state)).start().model("ok")
    assert player.state["state"] == {}


@pytest.mark.spec("agent-engine:23.4")
def test_a_new_message_on_a_paused_state_is_refused() -> None:
    paused = paused_on_approval()
    player = following(paused, HELPER, "hello")
    with pytest.raises(EngineRefused) as refused:
        player.start()
    assert refused.value.code == "execution.invalid-input"


@pytest.mark.spec("agent-engine:23.5")
def test_a_message_on_an_active_state_is_refused() -> None:
    turn = {"turnId": "turn_T1_0_1", "attempts": {"afterStep": 0, "afterTurn": 0}}
    state = {**start(PLAIN).model("ok").state, "status": "active", "turn": turn}
    given = checkpoint(PLAIN, "again", turn="T2", state=state)
    assert refusal(PLAIN, given).code == "execution.invalid-state"


def test_a_plan_without_a_pause_is_refused() -> None:
    state = {**paused_on_approval().state, "status": "completed"}
    given = checkpoint(HELPER, "again", turn="T2", state=state)
    assert refusal(HELPER, given).code == "execution.invalid-state"


@pytest.mark.spec("agent-engine:23.40")
def test_a_saved_call_of_a_tool_that_changed_is_refused() -> None:
    session_tool = {"capabilityId": "desk", "name": "remote", "inputSchema": {"type": "object"}}
    asking = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}}
    paused = start(HELPER, session_tools=[session_tool]).model(calls(call("c1", "remote"))).tool(asking)
    answer = approval(paused)
    changed = {**session_tool, "description": "Now it says more."}
    player = following(paused, HELPER, answer, session_tools=[changed])
    with pytest.raises(EngineRefused) as refused:
        player.start()
    assert refused.value.code == "execution.incompatible"
    with pytest.raises(EngineRefused) as refused:
        following(paused, HELPER, answer).start()
    assert refused.value.code == "execution.incompatible"
    same = following(paused, HELPER, answer, session_tools=[{**session_tool, "description": ""}]).start()
    assert [effect.kind for effect in same.asked.values()] == ["tool"]


def test_saved_arguments_that_no_longer_fit_are_refused() -> None:
    state = paused_on_approval().state
    state["plan"]["calls"][0]["rawArgs"] = {"word": 7}
    given = checkpoint(HELPER, approval(paused_on_approval()), segment=1, state=state)
    assert refusal(HELPER, given).code == "execution.incompatible"
    state["plan"]["calls"][0]["rawArgs"] = {"word": "other"}
    assert refusal(HELPER, given).code == "execution.incompatible"


def paused_on_approval() -> Player:
    asking = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}}
    return start(HELPER).model(calls(call("c1", "lookup", word="ox"))).tool(asking)


def approval(paused: Player) -> dict[str, Any]:
    interaction = paused.state["plan"]["calls"][0]["interaction"]
    return {"kind": "approve", "interactionId": interaction["id"], "approved": True}
