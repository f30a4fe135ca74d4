"""Hooks after steps and turns: denials, approvals, retries, replacements, blocks (agent-engine 13)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import YieldAfter
from tests.engine.support import (
    Player,
    agent_of,
    call,
    calls,
    capability,
    following,
    start,
    text,
    tool,
)

STEP = agent_of(
    capability("one", tool("a"), tool("b"), hooks="after-step"), capability("two", hooks="after-step")
)
TURN = agent_of(capability("one", tool("a"), hooks="after-turn"), capability("two", hooks="after-turn"))
ANSWER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "default": 3}, "word": {"type": "string"}},
    "required": ["word"],
}
SHAPED = {**TURN, "outputSchema": ANSWER}
TWO = calls(call("c1", "a"), call("c2", "b"))


def feedback(words: str, turn: str = "turn_T1_0_1") -> dict[str, Any]:
    event = {"kind": "user-message", "text": words, "metadata": {"source": "hook.retry"}}
    return {"kind": "input", "turnId": turn, "event": event}


def kinds(player: Player) -> list[str]:
    return [entry["kind"] for entry in player.entries]


# Calls


def test_the_hook_sees_the_calls_as_they_are_stored() -> None:
    player = start(STEP).model(calls(text(""), call("x", "a", k=1), call("x", "", j=2), call("", "b")))
    shown = player.document()["input"]
    assert "text" not in shown
    assert shown["toolCalls"] == [
        {"id": "call_T1_0_1", "name": "a", "args": {"k": 1}},
        {"id": "call_T1_0_2", "name": "unknown", "args": {"j": 2}},
        {"id": "call_T1_0_3", "name": "b", "args": {}},
    ]


def test_a_denied_call_takes_no_invocation_and_the_others_run() -> None:
    player = start(STEP).model(TWO).hook(one={"deny": [{"id": "c1", "reason": "no"}]})
    assert list(player.in_flight) == ["T1:0:tool:invocation_T1_0_2"]
    assert player.document()["context"]["callId"] == "c2"
    player.tool("x")
    assert player.in_flight
    player.model("ok").hook()
    assert player.results()[0] == {"callId": "c1", "toolName": "a", "kind": "denied", "reason": "no"}


def test_denials_merge_by_call_and_beat_approvals() -> None:
    player = start(STEP).model(TWO)
    player.hook(
        one={"deny": [{"id": "c1", "reason": "first"}, {"id": "gone", "reason": "x"}]},
        two={"deny": [{"id": "c1", "reason": "second"}], "approve": [{"id": "c1", "prompt": "?"}]},
    )
    player.tool("x").model("ok").hook()
    assert [result["kind"] for result in player.results()] == ["denied", "completed"]
    assert player.results()[0]["reason"] == "second"


@pytest.mark.spec("agent-engine:23.21")
def test_an_approval_for_one_of_two_calls_holds_back_both() -> None:
    first = start(STEP).model(TWO)
    first.hook(one={"approve": [{"id": "c1", "prompt": "x"}]}, two={"approve": [{"id": "c1", "prompt": "y"}]})
    assert first.result.status == "paused"
    assert [effect.kind for effect in first.asked.values()] == ["model", "hook"]
    assert first.state["revision"] == 5
    one, two = first.state["plan"]["calls"]
    assert (one["status"], one["interactionPhase"], two["status"]) == ("interaction", "before", "pending")
    assert one["interaction"] == {"kind": "approval", "prompt": "y", "id": "interaction_T1_0_1"}
    assert (one["invocationId"], two["invocationId"]) == ("invocation_T1_0_2", "invocation_T1_0_3")
    answer = {"kind": "approve", "interactionId": "interaction_T1_0_1", "approved": True}
    second = following(first, STEP, answer).start()
    assert list(second.in_flight) == ["T1:1:tool:invocation_T1_0_2", "T1:1:tool:invocation_T1_0_3"]
    resume = second.document("T1:1:tool:invocation_T1_0_2")["context"]["resume"]
    assert resume == {"interactionId": "interaction_T1_0_1", "kind": "approval", "approved": True}


def test_two_approvals_pause_twice_before_anything_runs() -> None:
    both = [{"id": "c1", "prompt": "?"}, {"id": "c2", "prompt": "?"}]
    first = start(STEP).model(TWO).hook(one={"approve": both})
    answer = {"kind": "approve", "interactionId": "interaction_T1_0_1", "approved": True}
    second = following(first, STEP, answer).start()
    assert (second.result.status, second.asked) == ("paused", {})
    answer = {"kind": "approve", "interactionId": "interaction_T1_0_2", "approved": False}
    third = following(second, STEP, answer, segment=2).start()
    assert list(third.in_flight) == ["T1:2:tool:invocation_T1_0_2"]
    third.tool("x").model("ok").hook()
    assert [result["kind"] for result in third.results()] == ["completed", "denied"]


def test_approval_of_a_call_that_can_t_run_is_ignored() -> None:
    player = start(STEP).model(calls(call("c1", "gone"))).hook(one={"approve": [{"id": "c1", "prompt": "?"}]})
    assert player.prompt()[-1]["status"] == "failed"


def test_a_retry_denies_the_calls_that_could_run_and_counts() -> None:
    player = start(STEP).model(calls(call("c1", "a"), call("c2", "gone"), call("c3", "b")))
    player.hook(one={"retry": "fewer", "deny": [{"id": "c1", "reason": "x"}]}, two={"text": "y"})
    assert [item.get("status") for item in player.prompt()[-3:]] == ["denied", "failed", "denied"]
    assert list(player.in_flight) == ["T1:0:model:invocation_T1_0_2"]
    player.model("ok")
    assert player.document()["input"]["attempt"] == 1
    player.hook()
    assert [result.get("reason") for result in player.results()] == ["fewer", None, "fewer"]


# Texts


@pytest.mark.spec("agent-engine:23.43")
def test_a_retry_of_an_answer_feeds_the_model_until_the_hook_is_content() -> None:
    player = start(STEP)
    attempts = []
    for number in range(3):
        player.model(f"answer {number}")
        attempts.append(player.document()["input"]["attempt"])
        if number < 2:
            player.hook(one={"retry": "ignored"}, two={"retry": f"again {number}"})
    assert attempts == [0, 1, 2]
    player.hook()
    assert player.result.output == "answer 2"
    assert [entry for entry in player.entries if entry["kind"] == "input"][1:] == [
        feedback("again 0"),
        feedback("again 1"),
    ]
    assert kinds(player) == ["input", *["candidate", "input"] * 2, "candidate", "final"]


def test_a_retried_answer_is_not_checked_against_the_output_schema() -> None:
    manifest = {**STEP, "outputSchema": ANSWER}
    player = start(manifest).model("words").hook(one={"retry": "JSON please"})
    assert player.prompt()[-1]["content"] == [{"type": "text", "text": "JSON please"}]
    player.model({"output": [{"type": "json", "value": {"word": "x"}}]}).hook()
    assert player.result.output == {"n": 3, "word": "x"}


def test_a_text_replaces_the_candidate_s_blocks_calls_included() -> None:
    usage = {"inputTokens": 5}
    player = start(STEP).model({**TWO, "usage": usage, "finishReason": "tool-calls"})
    player.hook(one={"text": "first", "deny": [{"id": "c1", "reason": "x"}]}, two={"text": "clean"})
    assert player.result.output == "clean"
    candidate = {"output": [text("clean")], "usage": usage, "finishReason": "tool-calls"}
    assert player.entries[1]["candidate"] == candidate


def test_an_empty_text_replaces_too_and_null_does_not() -> None:
    assert start(STEP).model("x").hook(one={"text": ""}).result.output == ""
    assert start(STEP).model("x").hook(one={"text": None, "deny": None}).result.output == "x"


@pytest.mark.parametrize("nothing", ["", None, False])
def test_an_empty_block_or_retry_says_nothing(nothing: Any) -> None:
    result = {"block": nothing, "retry": nothing}
    assert start(STEP).model("x").hook(one=result).result.output == "x"
    assert start(TURN).model("x").hook(one=result).result.output == "x"


def test_a_block_beats_everything_and_the_candidate_stays() -> None:
    player = start(STEP).model(TWO).hook(one={"block": "a"}, two={"block": "b", "retry": "r", "text": "t"})
    assert player.error == {"code": "dynamics.blocked", "message": "b"}
    assert kinds(player) == ["input", "candidate"]
    assert player.state["revision"] == 4


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ("x", "must return an object"),
        ({"block": 5}, "block must be a string"),
        ({"retry": ["x"]}, "retry must be a string"),
        ({"text": {}}, "text must be a string"),
        ({"deny": {"id": "c1"}}, "deny must list an id and a reason for each call"),
        ({"deny": "c1"}, "deny must list an id and a reason for each call"),
        ({"approve": [{"id": "c1"}]}, "approve must list an id and a prompt for each call"),
    ],
)
def test_a_decision_that_does_not_fit_lets_no_call_through(result: Any, complaint: str) -> None:
    player = start(STEP).model(TWO).hook(one=result)
    assert player.error == {
        "code": "configuration.invalid",
        "message": f"Capability 'one' hook {complaint}",
    }
    assert kinds(player) == ["input", "candidate"]
    assert player.state["revision"] == 3


def test_a_failed_hook_after_a_step_keeps_the_candidate() -> None:
    player = start(STEP).model("x")
    player.fail(player.only("hook"), "internal", "hook broke")
    assert player.error == {"code": "model.failed", "message": "hook broke"}
    assert kinds(player) == ["input", "candidate"]


def test_an_invalid_candidate_is_shown_to_no_hook() -> None:
    player = start(STEP).model(5)
    assert player.error["code"] == "model.invalid-candidate"
    assert [effect.kind for effect in player.asked.values()] == ["model"]


def test_an_abort_during_a_hook_after_a_step_ends_without_the_candidate() -> None:
    player = start(STEP).model("x").abort()
    assert (player.result.status, kinds(player)) == ("cancelled", ["input"])


# After the turn


def test_a_replacement_is_what_candidate_and_output_carry() -> None:
    player = start(TURN).model({"output": [text("x")], "usage": {"inputTokens": 1}})
    player.hook(one={"text": "first"}, two={"text": "clean"})
    assert player.result.output == "clean"
    assert player.entries[1]["candidate"] == {"output": [text("clean")], "usage": {"inputTokens": 1}}
    assert player.entries[2]["output"] == "clean"


def test_a_structured_replacement_is_what_the_schema_makes_of_it() -> None:
    player = start(SHAPED).model({"output": [{"type": "json", "value": {"word": "x"}}]})
    assert player.document()["input"] == {"output": {"n": 3, "word": "x"}, "state": {}, "attempt": 0}
    player.hook(one={"output": {"word": "y"}})
    assert player.result.output == {"n": 3, "word": "y"}
    assert player.entries[1]["candidate"] == {"output": [{"type": "json", "value": {"n": 3, "word": "y"}}]}


@pytest.mark.parametrize(
    ("manifest", "result", "error"),
    [
        (
            SHAPED,
            {"output": {"n": "x"}},
            (
                "output.invalid",
                'after("turn") output failed validation: Invalid input: expected number, received string; '
                "Invalid input: expected string, received undefined",
            ),
        ),
        (
            SHAPED,
            {"text": "x"},
            (
                "configuration.invalid",
                'after("turn") must return output, not text, for an agent with an output schema',
            ),
        ),
        (
            TURN,
            {"output": None},
            (
                "configuration.invalid",
                'after("turn") must return text, not output, for an agent without an output schema',
            ),
        ),
        (TURN, "x", ("configuration.invalid", "Capability 'one' hook must return an object")),
    ],
)
def test_a_failure_after_the_turn_ends_it_without_the_candidate(
    manifest: Any, result: Any, error: tuple[str, str]
) -> None:
    answer = {"output": [{"type": "json", "value": {"word": "x"}}]} if manifest is SHAPED else "x"
    player = start(manifest).model(answer).hook(one=result)
    assert player.error == {"code": error[0], "message": error[1]}
    assert kinds(player) == ["input"]


def test_a_host_failure_after_the_turn_is_an_execution_failure() -> None:
    player = start(TURN).model("x")
    player.fail(player.only("hook"), "internal", "hook broke")
    assert player.error == {"code": "execution.failed", "message": "hook broke"}
    assert kinds(player) == ["input"]


def test_a_block_after_the_turn_keeps_the_candidate_and_ends_the_execution() -> None:
    player = start(TURN).model("x").hook(one={"block": "Leak", "text": "y"}, two={"retry": "z"})
    assert player.error == {"code": "dynamics.blocked", "message": "Leak", "scope": "execution"}
    assert player.entries[-1]["candidate"] == {"output": [text("x")]}


def test_a_retry_after_the_turn_counts_apart_from_those_of_steps() -> None:
    player = start(TURN).model("x").hook(one={"retry": "again", "text": "ignored"})
    player.model("y")
    assert player.document()["input"]["attempt"] == 1
    player.hook()
    assert player.result.output == "y"
    assert player.entries[2] == feedback("again")
    assert kinds(player) == ["input", "candidate", "input", "candidate", "final"]


def test_counts_survive_a_rollover() -> None:
    first = start(TURN, yield_after=YieldAfter(steps=1)).model("x").hook(one={"retry": "again"})
    assert first.result.status == "yielded"
    assert first.state["turn"]["attempts"] == {"afterStep": 0, "afterTurn": 1}
    second = following(first, TURN, {"kind": "continue"}).start().model("y")
    assert second.document()["input"]["attempt"] == 1


def test_a_retry_after_a_step_leaves_the_turn_s_hook_out() -> None:
    manifest = agent_of(capability("one", hooks="after-step after-turn"))
    player = start(manifest).model("x").hook(one={"retry": "again"})
    assert player.only("model")
    player.model("y").hook()
    assert list(player.in_flight) == ["T1:0:hook:after-turn:step_T1_0_2"]


def test_an_abort_during_the_last_hook_cancels_only_if_the_hook_fails() -> None:
    assert start(TURN).model("x").abort().result.status == "cancelled"
    finished = start(TURN).model("x").abort(stopping=False).hook()
    assert (finished.result.status, finished.result.output) == ("completed", "x")
    retried = start(TURN).model("x").abort(stopping=False).hook(one={"retry": "again"})
    assert (retried.result.status, kinds(retried)) == ("cancelled", ["input", "candidate", "input"])
