from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import Abort, AbortedEffect, AbortKind, EngineRefused, YieldAfter
from tests.engine.support import (
    CANCEL,
    HELPER,
    PLAIN,
    Player,
    agent,
    call,
    calls,
    checkpoint,
    following,
    start,
    tool,
)

TWO = agent(tool("a"), tool("b"))
MODEL = "T1:0:model:invocation_T1_0_1"
FIRST = "T1:0:tool:invocation_T1_0_2"
SECOND = "T1:0:tool:invocation_T1_0_3"
ONE_STEP = YieldAfter(steps=1)


def asking() -> Player:
    value = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}}
    return (
        start(TWO).model(calls(call("c1", "a"), call("c2", "b"))).complete(SECOND, "x").complete(FIRST, value)
    )


# Rollover


@pytest.mark.spec("agent-engine:23.23")
def test_a_segment_rolls_over_after_its_steps_and_the_turn_goes_on() -> None:
    first = start(TWO, yield_after=ONE_STEP).model(calls(call("c", "a"))).tool("x")
    assert first.result.status == "yielded"
    assert first.state["status"] == "active"
    turn = {"turnId": "turn_T1_0_1", "attempts": {"afterStep": 0, "afterTurn": 0}}
    assert first.state["turn"] == turn
    assert first.entries[-1]["kind"] == "tool-results"
    second = following(first, TWO, {"kind": "continue"}, yield_after=ONE_STEP).start()
    assert list(second.in_flight) == ["T1:1:model:invocation_T1_1_1"]
    second.model("done")
    assert second.result.status == "completed"
    assert {entry["turnId"] for entry in second.entries} == {"turn_T1_0_1"}
    assert second.state["turnCount"] == 1
    assert "turn" not in second.state


@pytest.mark.spec("agent-engine:23.24")
def test_an_answer_in_the_last_step_completes() -> None:
    assert start(TWO, yield_after=ONE_STEP).model("done").result.status == "completed"


def test_a_pause_wins_over_a_rollover() -> None:
    player = start(TWO, yield_after=ONE_STEP).model(calls(call("c", "a"))).tool({"kind": "deferred"})
    assert player.result.status == "paused"
    assert "turn" not in player.state


def test_a_resumed_segment_may_run_a_whole_step_of_its_own() -> None:
    answer = {
        "kind": "approve",
        "interactionId": "T1:0:interaction:invocation_T1_0_2",
        "approved": True,
    }
    player = following(asking(), TWO, answer, yield_after=ONE_STEP).start().tool("y")
    assert list(player.in_flight) == ["T1:1:model:invocation_T1_1_1"]
    player.model(calls(call("c3", "a"))).tool("z")
    assert player.result.status == "yielded"
    assert player.state["turn"]["turnId"] == "turn_T1_0_1"
    assert player.state["plan" if "plan" in player.state else "status"] == "active"


@pytest.mark.parametrize(("passed", "status"), [(99.0, "waits"), (100.0, "yielded")])
def test_a_segment_rolls_over_when_its_time_is_up(passed: float, status: str) -> None:
    player = Player(TWO, checkpoint(TWO), yield_after=YieldAfter(ms=100))
    player.now = 1000.0
    player.start().model(calls(call("c", "a")))
    player.now += passed
    player.tool("x")
    assert (player.ended.status if player.ended else "waits") == status


def test_time_alone_does_not_end_a_segment_before_its_first_step() -> None:
    player = start(TWO, yield_after=YieldAfter(ms=0))
    assert list(player.in_flight) == [MODEL]


def test_a_continued_step_number_counts_the_turn_s_candidates() -> None:
    first = start(TWO, yield_after=YieldAfter(steps=2))
    first.model(calls(call("c1", "a"))).tool("x").model(calls(call("c2", "a"))).tool("y")
    second = following(first, TWO, {"kind": "continue"}).start().model(calls(call("c3", "a")))
    second.tool({"kind": "deferred"})
    assert second.state["plan"]["stepNumber"] == 3


# Aborts


@pytest.mark.spec("agent-engine:23.25")
def test_an_abort_during_calls_ends_cancelled_with_their_failures() -> None:
    player = start(TWO).model(calls(call("c1", "a"), call("c2", "b"))).abort()
    assert player.result.status == "cancelled"
    assert player.state["cancelledCalls"] == []
    assert "plan" not in player.state
    failed = {"kind": "failed", "code": "tool.cancelled", "message": "Turn cancelled"}
    assert player.results() == [
        {"callId": "c1", "toolName": "a", **failed},
        {"callId": "c2", "toolName": "b", **failed},
    ]


@pytest.mark.spec("agent-engine:23.25b")
def test_an_uncertain_answer_wins_over_an_abort() -> None:
    player = start(TWO).model(calls(call("c1", "a"), call("c2", "b"))).abort(stopping=False)
    player.uncertain(FIRST)
    assert player.ended is None
    player.answer(SECOND, AbortedEffect(CANCEL))
    assert (player.result.status, player.result.effect_ids) == ("uncertain", (FIRST,))
    assert player.result.state is None


def test_a_pending_model_call_wins_over_an_abort() -> None:
    player = start(TWO).abort(stopping=False).pending(MODEL)
    assert (player.result.status, player.result.effect_ids) == ("waiting", (MODEL,))


@pytest.mark.spec("agent-engine:23.26")
def test_a_paused_turn_can_be_cancelled() -> None:
    paused = asking()
    player = following(paused, TWO, {"kind": "continue"})
    player.abort()
    player.start()
    assert player.result.status == "cancelled"
    assert not player.asked
    assert [kept["callId"] for kept in player.state["cancelledCalls"]] == ["c1"]
    assert player.state["cancelledCalls"][0]["interaction"]["prompt"] == "?"
    assert player.results()[0]["message"] == (
        "Invocation cancelled; external effects are not automatically retried"
    )
    assert player.results()[1]["output"] == "x"


def test_cancelled_calls_of_an_earlier_turn_are_kept() -> None:
    cancelled = following(asking(), TWO, {"kind": "continue"})
    cancelled.abort()
    cancelled.start()
    later = following(cancelled, TWO, "again").start().model("ok")
    assert later.state["cancelledCalls"] == cancelled.state["cancelledCalls"]


def test_a_message_for_a_paused_turn_is_refused_also_when_aborted() -> None:
    player = following(asking(), TWO, "hello")
    player.abort()
    with pytest.raises(EngineRefused):
        player.start()


def test_an_abort_before_the_start_ends_cancelled_at_once() -> None:
    player = Player(PLAIN, checkpoint(PLAIN))
    player.abort()
    player.start()
    assert player.result.status == "cancelled"
    assert (player.state["revision"], player.state["turnCount"], player.entries) == (1, 0, [])
    assert not player.observed


def test_an_answer_that_arrives_after_an_abort_is_not_written_down() -> None:
    player = start(PLAIN).abort(stopping=False).model("late")
    assert player.result.status == "cancelled"
    assert [entry["kind"] for entry in player.entries] == ["input"]


def test_a_tool_that_finishes_after_an_abort_keeps_its_result() -> None:
    player = start(TWO).model(calls(call("c", "a"))).abort(stopping=False).complete(FIRST, "late", {"k": 1})
    assert player.result.status == "cancelled"
    assert player.results()[0]["output"] == "late"
    assert player.state["state"] == {"k": 1}
    assert len(player.asked) == 2


def test_a_host_failure_after_an_abort_is_a_cancellation() -> None:
    player = start(TWO).model(calls(call("c", "a"))).abort(stopping=False)
    player.fail(FIRST, "internal", "core broke")
    failed = {"kind": "failed", "code": "tool.cancelled", "message": "core broke"}
    assert player.results() == [{"callId": "c", "toolName": "a", **failed}]
    player = start(TWO).abort(stopping=False)
    player.fail(MODEL, "internal", "core broke")
    assert player.result.status == "cancelled"


def test_the_first_abort_wins() -> None:
    player = start(TWO).model(calls(call("c", "a"))).abort(stopping=False)
    player.engine.abort(Abort(AbortKind.DEADLINE, "too late"))
    player.complete(FIRST, "x")
    assert player.result.status == "cancelled"


def test_nothing_is_asked_once_the_run_is_aborted() -> None:
    player = start(HELPER).abort(stopping=False).model(calls(call("c", "lookup", word="ox")))
    assert player.result.status == "cancelled"
    assert list(player.asked) == [MODEL]


# Failures


@pytest.mark.spec("agent-engine:23.27")
def test_an_overflow_without_anything_to_compact_fails_the_turn() -> None:
    overflow = {"kind": "failed", "code": "context_overflow", "message": "too long", "retryable": False}
    player = start(PLAIN).model(overflow)
    assert player.error == {"code": "model.context_overflow", "message": "too long"}
    assert list(player.asked) == [MODEL]


def test_a_core_that_breaks_fails_the_turn_with_its_message() -> None:
    player = start(PLAIN)
    player.fail(MODEL, "internal", "core broke")
    assert player.error == {"code": "model.failed", "message": "core broke"}


# Answers


ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "default": 3}, "word": {"type": "string"}},
    "required": ["word"],
}


def answer(value: Any) -> dict[str, Any]:
    return {"type": "json", "value": value}


@pytest.mark.spec("agent-engine:23.33")
@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "text", "text": "word"}],
        [],
        [answer({"word": "a"}), {"type": "text", "text": ""}],
        [answer({"word": "a"}), answer({"word": "b"})],
    ],
)
def test_an_answer_of_another_form_fails_and_the_candidate_stays(blocks: list[Any]) -> None:
    manifest = agent(outputSchema=ANSWER)
    player = start(manifest).model({"output": blocks})
    assert player.error == {
        "code": "output.invalid",
        "message": "Structured terminal output must contain exactly one JSON block and no text blocks",
    }
    assert player.entries[-1]["kind"] == "candidate"


def test_an_answer_that_does_not_fit_names_its_issues() -> None:
    player = start(agent(outputSchema=ANSWER)).model({"output": [answer({"n": "x"})]})
    assert player.error["message"] == (
        "Structured terminal output failed validation: n: Invalid input: expected number, received string; "
        "word: Invalid input: expected string, received undefined"
    )


def test_an_answer_is_what_the_schema_makes_of_it() -> None:
    manifest = agent(outputSchema=ANSWER)
    block = {"type": "reasoning", "text": "hm"}
    player = start(manifest).model({"output": [block, answer({"word": "a"})]})
    assert player.result.output == {"n": 3, "word": "a"}
    assert player.entries[-1]["output"] == {"n": 3, "word": "a"}
    assert player.state["outputContract"] == ANSWER
    effect = player.asked[MODEL]
    assert effect.model_call is not None
    assert b'"outputSchema":{"type":"object"' in effect.model_call.text()
    later = following(player, manifest, "again").start()
    assert later.prompt()[1] == {
        "kind": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": '{"word":"a"}'}],
    }


def test_an_output_schema_that_can_t_be_compiled_is_refused() -> None:
    manifest = agent(outputSchema={"type": "object", "if": {}})
    with pytest.raises(EngineRefused):
        start(manifest)


@pytest.mark.spec("agent-engine:23.45")
def test_reasoning_is_shown_only_with_metadata_and_some_only_in_its_turn() -> None:
    turn_only = {"type": "reasoning", "text": "t", "providerMetadata": {"replay": "turn"}}
    always = {"type": "reasoning", "text": "a", "providerMetadata": {"sig": "s"}}
    never = {"type": "reasoning", "text": "n"}
    first = start(TWO).model(calls(turn_only, always, never, call("c", "a"))).tool("x")
    shown = first.prompt()[1]["content"]
    assert [block.get("text", "call") for block in shown] == ["t", "a", "call"]
    first.model("ok")
    later = following(first, TWO, "again").start()
    shown = later.prompt()[1]["content"]
    assert [block.get("text", "call") for block in shown] == ["a", "call"]


def test_a_candidate_of_hidden_reasoning_only_is_not_shown() -> None:
    first = start(PLAIN).model({"output": [{"type": "reasoning", "text": "n"}]})
    later = following(first, PLAIN, "again").start()
    assert [item["role"] for item in later.prompt()] == ["system", "user", "user"]


def test_a_producer_is_named_when_both_names_are_there() -> None:
    def shown(producer: Any) -> Any:
        candidate = {
            "output": [{"type": "text", "text": "x"}],
            "evidence": {"extras": {"producer": producer}},
        }
        return following(start(PLAIN).model(candidate), PLAIN, "again").start().prompt()[2].get("producer")

    whole = {"provider": "p", "model": "m", "api": "chat"}
    assert shown(whole) == whole
    assert shown({"provider": "p", "model": "m", "more": 1}) == {"provider": "p", "model": "m"}
    assert shown({"provider": "p"}) is None
    assert shown("p") is None
