"""Hooks before turns and steps: who is asked, what is shown, what a patch changes (agent-engine 13)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import AbortedEffect
from tests.engine.support import (
    CANCEL,
    HOOKED,
    Player,
    agent_of,
    call,
    calls,
    capability,
    checkpoint,
    following,
    start,
    text,
    tool,
)

ALL = "before-turn before-step after-step after-turn"
BEFORE = "before-turn before-step"
DESK = agent_of(
    capability("agent", hooks=BEFORE, instructions=["Base."]),
    capability("desk", tool("a"), tool("b"), hooks=BEFORE),
    capability("rack", tool("c")),
)
OVERFLOW = {"kind": "failed", "code": "context_overflow", "message": "too long", "retryable": False}


def tools_shown(player: Player) -> list[str]:
    from protocol import jsjson

    model = player.in_flight[player.only("model")].model_call
    assert model is not None
    document: Any = jsjson.loads(model.text())
    return [shown["name"] for shown in document["tools"]]


def system(player: Player) -> str:
    found: str = player.prompt()[0]["content"][0]["text"]
    return found


def test_one_effect_per_point_names_its_capabilities_in_manifest_order() -> None:
    player = start(DESK)
    assert list(player.in_flight) == ["T1:0:hook:before-turn"]
    assert player.document()["hook"] == {"at": "before", "scope": "turn", "capabilityIds": ["agent", "desk"]}
    player.hook()
    assert list(player.in_flight) == ["T1:0:hook:before-step:step_T1_0_1"]


def test_points_nobody_listens_at_cost_no_effect_but_are_recorded() -> None:
    manifest = agent_of(capability("late", hooks="after-turn"))
    player = start(manifest).model("hi")
    assert list(player.in_flight) == ["T1:0:hook:after-turn:step_T1_0_1"]
    player.hook()
    assert player.state["revision"] == 4
    assert "turn" not in player.state


def test_every_point_is_told_about_the_session() -> None:
    manifest = agent_of(capability("rules", hooks=ALL))
    player = Player(manifest, checkpoint(manifest, info={"user": "u"})).start()
    shown = player.document()
    assert shown["context"] == {"info": {"user": "u"}}
    assert shown["input"]["info"] == {"user": "u"}
    player.hook().hook()
    player.model(calls(text("a"), text("b")))
    shown = player.document()
    assert shown["input"] == {
        "text": "ab",
        "toolCalls": [],
        "info": {"user": "u"},
        "state": {},
        "step": 0,
        "attempt": 0,
    }
    player.hook()
    shown = player.document()
    assert shown["input"] == {
        "text": "ab",
        "output": "ab",
        "info": {"user": "u"},
        "state": {},
        "attempt": 0,
    }


@pytest.mark.parametrize(
    ("input_", "shown"),
    [
        ("hi", "hi"),
        ({"text": "hi"}, "hi"),
        ({"kind": "interrupt", "text": "hi"}, None),
        ({"content": [{"type": "text", "text": "hi"}]}, None),
    ],
)
def test_only_the_text_of_a_user_message_is_shown_as_the_input(input_: Any, shown: str | None) -> None:
    player = start(HOOKED, input_)
    assert player.document()["input"].get("input") == shown
    assert player.document()["input"]["messages"][1]["role"] == "user"


def test_hooks_see_the_prompt_without_any_patch() -> None:
    player = start(DESK)
    turn = player.document()["input"]
    player.hook(agent={"instructions": ["More."], "tools": {"a": False}})
    step = player.document()["input"]
    assert turn["messages"] == step["messages"]
    assert step["messages"][0]["content"][0]["text"] == "Base."
    assert (step["step"], "step" in turn) == (0, False)


def test_instructions_of_turn_and_step_stand_last_in_that_order() -> None:
    player = start(DESK)
    player.hook(desk={"instructions": ["turn 2"]}, agent={"instructions": ["turn 1", ""]})
    player.hook(agent={"instructions": ["step"]})
    assert system(player) == "Base.\n\nturn 1\n\n\n\nturn 2\n\nstep"


def test_patches_of_a_step_end_with_it_and_those_of_a_turn_do_not() -> None:
    player = start(DESK).hook(agent={"instructions": ["turn"]}).hook(agent={"instructions": ["step"]})
    player.model(calls(call("c1", "a"))).tool("x").hook()
    assert system(player) == "Base.\n\nturn"


def test_an_agent_without_instructions_gets_those_of_its_hooks() -> None:
    manifest = agent_of(capability("rules", hooks="before-step"))
    player = start(manifest).hook(rules={"instructions": ["Be kind."]})
    assert system(player) == "Be kind."
    assert start(manifest).hook(rules={"instructions": []}).prompt()[0]["role"] == "user"


@pytest.mark.parametrize(
    ("turn", "step", "shown"),
    [
        ({}, {"agent": {"tools": {"a": False}}}, ["b", "c"]),
        ({}, {"desk": {"active": False}}, ["c"]),
        ({}, {"desk": {"capabilities": {"desk": False}, "tools": {"a": True}}}, ["c"]),
        ({"desk": {"active": False}}, {"desk": {"active": True}}, ["a", "b", "c"]),
        ({"desk": {"active": False}}, {"agent": {"capabilities": {"desk": True}}}, ["a", "b", "c"]),
        ({"agent": {"capabilities": {"rack": False}}}, {"agent": {"tools": {"c": True}}}, ["a", "b"]),
        ({"agent": {"tools": {"a": False, "b": False}}}, {"desk": {"tools": {"a": True}}}, ["a", "c"]),
        ({}, {"agent": {"tools": {"a": False}}, "desk": {"tools": {"a": True}}}, ["a", "b", "c"]),
    ],
)
def test_toggles_hide_tools_later_ones_and_the_step_s_winning(turn: Any, step: Any, shown: list[str]) -> None:
    assert tools_shown(start(DESK).hook(turn).hook(step)) == shown


def test_a_hidden_tool_is_unknown_to_the_model_s_calls() -> None:
    player = start(DESK).hook().hook(desk={"tools": {"a": False}})
    player.model(calls(call("c1", "a"))).hook()
    assert player.prompt()[-1]["content"][0]["text"] == (
        '{"kind":"failed","code":"tool.unknown","message":"Unknown Tool \'a\'"}'
    )
    assert "a" in tools_shown(player)


def test_a_step_may_hide_one_of_two_tools_of_one_name() -> None:
    manifest = agent_of(capability("desk", tool("a"), hooks="before-step"), capability("rack"))
    extra = [{"capabilityId": "rack", "name": "a", "inputSchema": {"type": "object"}}]
    player = start(manifest, session_tools=extra)
    assert player.hook(desk={}).error["code"] == "configuration.duplicate-tool-name"
    player = start(manifest, session_tools=extra).hook(desk={"active": False})
    assert tools_shown(player) == ["a"]


def test_what_hooks_remember_is_seen_at_once_and_kept() -> None:
    player = start(DESK).hook(agent={"state": {"k": 1, "j": 1}}, desk={"state": {"k": 2}})
    assert player.document()["input"]["state"] == {"k": 2, "j": 1}
    player.hook(desk={"state": {"k": 3}}).model(calls(call("c1", "a")))
    assert player.document()["context"]["state"] == {"k": 3, "j": 1}
    player.tool("x").hook().model("done")
    assert player.state["state"] == {"k": 3, "j": 1}


@pytest.mark.spec("agent-engine:23.41")
@pytest.mark.parametrize(
    "value", [None, [], "x", {}, {"results": None}, {"results": []}, {"results": {"agent": None, "x": 5}}]
)
def test_missing_and_unregistered_results_count_as_empty(value: Any) -> None:
    player = start(DESK)
    player.complete(player.only("hook"), value).hook()
    assert tools_shown(player) == ["a", "b", "c"]


@pytest.mark.spec("agent-engine:23.42")
def test_a_capability_may_not_toggle_another_one() -> None:
    player = start(DESK).hook(desk={"capabilities": {"rack": False}})
    assert player.error == {
        "code": "configuration.invalid",
        "message": "Capability 'desk' hook may only toggle itself, not 'rack'",
    }
    assert [effect.kind for effect in player.asked.values()] == ["hook"]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"desk": "x"}, "Capability 'desk' hook must return an object"),
        ({"desk": []}, "Capability 'desk' hook must return an object"),
        ({"desk": {"instructions": "x"}}, "Capability 'desk' hook instructions must be strings"),
        ({"desk": {"instructions": ["x", 1]}}, "Capability 'desk' hook instructions must be strings"),
        ({"desk": {"block": True}}, "Capability 'desk' hook block must be a string"),
        ({"desk": {"block": None}}, "Capability 'desk' hook block must be a string"),
        ({"desk": {"active": "no"}}, "Capability 'desk' hook toggles must be booleans"),
        ({"desk": {"tools": {"a": 0}}}, "Capability 'desk' hook toggles must be booleans"),
        ({"agent": {"capabilities": {"desk": None}}}, "Capability 'agent' hook toggles must be booleans"),
        ({"desk": {"capabilities": {"x": True}}}, "Capability 'desk' hook may only toggle itself, not 'x'"),
        ({"desk": {"tools": {"c": False}}}, "Capability 'desk' hook may only toggle its own tools"),
        ({"agent": {"capabilities": {"x": True}}}, "Hook referenced unknown capability 'x'"),
        ({"agent": {"tools": {"x": True}}}, "Hook referenced unknown tool 'x'"),
        ({"desk": {"tools": {"x": False}}}, "Hook referenced unknown tool 'x'"),
        ({"agent": {"active": True}}, "Agent-level before hooks must use capabilities{}, not active"),
    ],
)
def test_a_patch_that_does_not_fit_fails_the_step(results: Any, message: str) -> None:
    for player in (start(DESK).hook(results), start(DESK).hook().hook(results)):
        assert player.error == {"code": "configuration.invalid", "message": message}
        assert player.state["revision"] == 2
        assert [entry["kind"] for entry in player.entries] == ["input"]


def test_unknown_members_of_a_result_are_ignored() -> None:
    player = start(DESK).hook(desk={"deny": 5, "retry": "x", "text": "y"}).hook()
    assert player.only("model")


@pytest.mark.parametrize("block", ["Closed.", ""])
def test_a_block_before_the_turn_ends_it_before_its_first_step(block: str) -> None:
    player = start(DESK).hook(agent={"block": "first"}, desk={"block": block, "state": {"k": 1}})
    assert player.error == {"code": "dynamics.blocked", "message": block, "scope": "execution"}
    assert (player.state["revision"], player.state["state"]) == (2, {"k": 1})
    assert list(player.asked) == ["T1:0:hook:before-turn"]


def test_a_block_before_a_step_is_recorded_before_the_turn_ends() -> None:
    player = start(DESK).hook().hook(desk={"block": "No."})
    assert player.error == {"code": "dynamics.blocked", "message": "No."}
    assert player.state["revision"] == 3


def test_a_hook_that_core_fails_ends_the_turn_with_its_message() -> None:
    player = start(DESK)
    player.fail(player.only("hook"), "internal", "hook broke")
    assert player.error == {"code": "configuration.invalid", "message": "hook broke"}


def test_a_pending_hook_makes_the_segment_wait() -> None:
    player = start(DESK).hook()
    waiting = player.only("hook")
    player.pending(waiting)
    assert (player.result.status, player.result.effect_ids) == ("waiting", (waiting,))


def test_an_abort_while_a_hook_runs_ends_cancelled() -> None:
    for player in (start(DESK), start(DESK).hook()):
        player.abort()
        assert player.result.status == "cancelled"
        assert "turn" not in player.state
    late = start(DESK).abort(stopping=False).hook(agent={"state": {"k": 1}})
    assert late.result.status == "cancelled"
    assert list(late.asked) == ["T1:0:hook:before-turn"]
    assert late.state["state"] == {"k": 1}


# The turn across segments


def ask_for_approval(player: Player) -> Player:
    value = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}}
    return player.model(calls(call("c1", "a"))).tool(value)


@pytest.mark.spec("agent-engine:23.44")
def test_the_turn_s_patch_survives_a_pause_and_the_hook_is_not_asked_again() -> None:
    first = start(DESK).hook(agent={"instructions": ["turn"]}, desk={"tools": {"b": False}}).hook()
    ask_for_approval(first)
    assert first.state["turn"] == {
        "turnId": "turn_T1_0_1",
        "input": "go",
        "attempts": {"afterStep": 0, "afterTurn": 0},
        "patch": {"instructions": ["turn"], "tools": {"b": False}},
    }
    answer = {"kind": "approve", "interactionId": "T1:0:interaction:invocation_T1_0_2", "approved": True}
    second = following(first, DESK, answer).start().tool("x")
    assert list(second.in_flight) == ["T1:1:hook:before-step:step_T1_1_1"]
    assert second.document()["input"]["input"] == "go"
    assert second.document()["input"]["step"] == 1
    second.hook()
    assert system(second) == "Base.\n\nturn"
    assert tools_shown(second) == ["a", "c"]
    second.model("done")
    assert "turn" not in second.state


def test_the_turn_s_patch_survives_a_rollover() -> None:
    from gateway.engine.contract import YieldAfter

    one = YieldAfter(steps=1)
    first = start(DESK, yield_after=one).hook(agent={"instructions": ["turn"]}).hook()
    first.model(calls(call("c1", "a"))).tool("x")
    assert first.result.status == "yielded"
    assert first.state["turn"]["patch"] == {"instructions": ["turn"]}
    second = following(first, DESK, {"kind": "continue"}).start().hook()
    assert system(second) == "Base.\n\nturn"


def test_a_turn_without_a_patch_keeps_an_empty_one() -> None:
    manifest = agent_of(capability("desk", tool("a"), hooks="after-turn"))
    assert ask_for_approval(start(manifest)).state["turn"]["patch"] == {}
    assert "turn" not in ask_for_approval(start(agent_of(capability("desk", tool("a"))))).state


def test_the_next_turn_starts_without_the_last_one_s_patch() -> None:
    first = start(DESK).hook(agent={"instructions": ["turn"]}).hook().model("ok")
    second = following(first, DESK, "again").start()
    assert list(second.in_flight) == ["T2:0:hook:before-turn"]
    second.hook().hook()
    assert system(second) == "Base."


def test_an_overflow_retry_asks_for_the_step_again_but_not_for_the_turn() -> None:
    first = start(DESK, "x" * 400).hook().hook().model("y" * 400)
    player = following(first, DESK, "go").start().hook(agent={"instructions": ["turn"]}).hook()
    player.model(OVERFLOW).model("Summary.")
    assert list(player.in_flight) == ["T2:0:hook:before-step:step_T2_0_2"]
    player.hook()
    assert system(player) == "Base.\n\nturn"


def test_an_aborted_hook_answer_counts_as_the_run_s_end() -> None:
    player = start(DESK)
    player.engine.abort(CANCEL)
    player.answer(player.only("hook"), AbortedEffect(CANCEL))
    assert player.result.status == "cancelled"
