"""Looking into a segment between two of its steps."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import AgentPhase, AgentSnapshot
from protocol.transcript import Entry
from tests.engine.support import (
    CANCEL,
    HOOKED,
    Player,
    agent,
    agent_of,
    call,
    calls,
    capability,
    checkpoint,
    delegate,
    following,
    json_of,
    start,
    text,
    tool,
)

ONE = agent(tool("a"), tool("b"))
TURN = "turn_T1_0_1"


def root(player: Player) -> AgentSnapshot:
    return player.engine.snapshot().agents[0]


def kinds(seen: AgentSnapshot) -> list[str]:
    values: list[Any] = [entry.value() for entry in seen.transcript]
    return [value["kind"] for value in values]


def test_a_model_call_in_flight_is_shown_with_its_step_and_the_state_so_far() -> None:
    player = start(ONE, "hello")
    snapshot = player.engine.snapshot()
    assert snapshot.waiting == ("T1:0:model:invocation_T1_0_1",)
    assert (dict(snapshot.suspended), snapshot.abort) == ({}, None)
    (seen,) = snapshot.agents
    assert (seen.path, seen.delegation_id, seen.phase) == ("clerk", None, AgentPhase.MODEL)
    assert (seen.turn_id, seen.step_id, seen.step_number, seen.steps) == (TURN, "step_T1_0_1", 1, 0)
    assert (seen.state["status"], seen.state["revision"], seen.state["turnCount"]) == ("active", 1, 1)
    assert "plan" not in seen.state
    assert kinds(seen) == ["input"]
    assert seen.counters == {"run": 1, "turn": 1, "step": 1, "invocation": 1}


def test_running_calls_are_shown_as_their_plan_has_them() -> None:
    player = start(ONE).model(calls(call("c1", "a"), call("c2", "b"), call("c3", "gone")))
    player.complete("T1:0:tool:invocation_T1_0_2", "done", {"k": 1})
    snapshot = player.engine.snapshot()
    assert snapshot.waiting == ("T1:0:tool:invocation_T1_0_3",)
    (seen,) = snapshot.agents
    assert seen.phase is AgentPhase.CALLS
    plan: Any = seen.state["plan"]
    assert [one["status"] for one in plan["calls"]] == ["active", "active"]
    assert [result["code"] for result in plan["immediate"]] == ["tool.unknown"]
    assert seen.state["state"] == {}, "patches are written when all calls are back"
    assert kinds(seen) == ["input", "candidate"]


def test_an_effect_without_an_outcome_is_shown_as_suspended() -> None:
    player = start(ONE).model(calls(call("c1", "a"), call("c2", "b")))
    player.uncertain("T1:0:tool:invocation_T1_0_2")
    snapshot = player.engine.snapshot()
    assert snapshot.waiting == ("T1:0:tool:invocation_T1_0_3",)
    assert dict(snapshot.suspended) == {"T1:0:tool:invocation_T1_0_2": "uncertain"}


def test_an_abort_is_shown_before_it_has_done_anything() -> None:
    player = start(ONE)
    player.abort(stopping=False)
    assert player.engine.snapshot().abort == CANCEL
    assert root(player).phase is AgentPhase.MODEL


def test_each_hook_and_what_the_turns_first_one_changed_are_shown() -> None:
    player = start(HOOKED, "hi")
    assert root(player).phase is AgentPhase.HOOKS
    player.hook(rules={"instructions": ["Be kind."], "state": {"mood": "ok"}})
    seen = root(player)
    assert player.only("hook").endswith("before-step:step_T1_0_1")
    assert (seen.phase, seen.turn_patch) == (AgentPhase.HOOKS, {"instructions": ["Be kind."]})
    assert seen.state["state"] == {"mood": "ok"}
    player.hook()
    assert root(player).phase is AgentPhase.MODEL
    player.model("Hello.")
    assert root(player).phase is AgentPhase.HOOKS
    assert kinds(root(player)) == ["input"], "the hook still judges the candidate"
    player.hook().hook()
    assert (root(player).phase, root(player).state["status"]) == (AgentPhase.OVER, "completed")


def test_a_summary_call_is_a_phase_of_its_own() -> None:
    nearly_full = {"usage": {"totalTokens": 900}, "evidence": {"extras": {"contextWindow": 1000}}}
    first = start(ONE, "x" * 900).model({"output": [text("y" * 900)], **nearly_full})
    player = following(first, ONE, "go on").start()
    assert root(player).phase is AgentPhase.SUMMARY
    player.model("Summary.")
    assert root(player).phase is AgentPhase.MODEL
    assert kinds(root(player))[0] == "compaction"


def test_agents_that_run_as_tools_stand_behind_the_root_while_they_run() -> None:
    child = agent_of(capability("core", tool("find")), id="scout", description="Finds.")
    boss = agent_of(capability("team", delegate(child)), id="boss")
    player = start(boss).model(calls(call("d1", "scout", task="one"), call("d2", "scout", task="two")))
    assert len(player.engine.snapshot().agents) == 1, "no child runs before its start is written down"
    for effect_id in list(player.in_flight):
        player.complete(effect_id, None)
    top, one, two = player.engine.snapshot().agents
    assert (top.path, top.phase) == ("boss", AgentPhase.CALLS)
    assert [child.path for child in (one, two)] == ["boss/scout"] * 2
    assert [child.delegation_id for child in (one, two)] == ["invocation_T1_0_2", "invocation_T1_0_3"]
    assert one.state["executionId"] == "S1/invocation_T1_0_2"
    assert (one.phase, two.phase) == (AgentPhase.MODEL, AgentPhase.MODEL)
    first = next(name for name in player.in_flight if "invocation_T1_0_2/" in name)
    player.complete(first, calls(call("f", "find")))
    assert [seen.phase for seen in player.engine.snapshot().agents[1:]] == [
        AgentPhase.CALLS,
        AgentPhase.MODEL,
    ]
    second = next(name for name in player.in_flight if "invocation_T1_0_3/" in name)
    player.complete(second, "answer")
    assert [seen.delegation_id for seen in player.engine.snapshot().agents[1:]] == ["invocation_T1_0_2"]


def test_a_resumed_plan_is_shown_at_the_step_that_made_it() -> None:
    paused = start(ONE).model(calls(call("c1", "a")))
    paused.tool({"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}})
    approve = {
        "kind": "approve",
        "interactionId": "T1:0:interaction:invocation_T1_0_2",
        "approved": True,
    }
    seen = root(following(paused, ONE, approve).start())
    assert (seen.step_id, seen.step_number, seen.phase) == ("step_T1_0_1", 1, AgentPhase.CALLS)


def test_a_snapshot_changes_nothing_and_stays_as_it_was() -> None:
    looked, alone = start(ONE), start(ONE)
    taken: list[tuple[AgentSnapshot, Any]] = []

    def texts(entries: Any) -> list[str]:
        return [entry.text for entry in entries]

    def look() -> None:
        seen = root(looked)
        taken.append((seen, json_of([dict(seen.state), texts(seen.transcript), dict(seen.counters)])))

    answers: list[Any] = [calls(call("c", "a")), {"kind": "completed", "output": 1}, "done"]
    for answer in answers:
        look()
        for player in (looked, alone):
            player.complete(next(iter(player.in_flight)), answer, {"n": 1})
    look()
    assert (looked.state, looked.hashes) == (alone.state, alone.hashes)
    for seen, then in taken:
        assert json_of([dict(seen.state), texts(seen.transcript), dict(seen.counters)]) == then


def test_entries_are_shared_not_copied() -> None:
    entries = [
        Entry.from_value({"kind": "input", "turnId": "t", "event": {"kind": "user-message", "text": "x"}})
    ]
    state = start(ONE).model("ok").state
    player = Player(ONE, checkpoint(ONE, turn="T2", state=state), transcript=entries).start()
    assert root(player).transcript[0] is entries[0]


def test_there_is_nothing_to_see_before_the_start() -> None:
    with pytest.raises(ValueError, match="not started"):
        Player(ONE, checkpoint(ONE)).engine.snapshot()
