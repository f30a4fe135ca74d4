"""Compaction: when, what is asked for, what stays (agent-engine 17b)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.agent.compaction_size import chunks_of, summary_limit
from gateway.engine.agent.entry_facts import Window
from gateway.engine.contract import YieldAfter
from protocol import jsjson
from tests.engine.support import (
    PLAIN,
    Player,
    agent,
    agent_of,
    call,
    calls,
    capability,
    following,
    json_of,
    start,
    text,
    tool,
)

ONE = agent(tool("a"))
OVERFLOW = {"kind": "failed", "code": "context_overflow", "message": "too long", "retryable": False}
FIRST = "T2:0:model:compaction-step_T2_0_1"


def told(window: float, most: float | None = None) -> dict[str, Any]:
    extras = {"contextWindow": window} | ({} if most is None else {"maxOutputTokens": most})
    return {"extras": extras}


def long_session(manifest: dict[str, Any] = PLAIN, window: Any = None, turns: int = 1) -> Player:
    """Completed turns of a 400-character message and an answer of as many; the last one tells the window."""
    members = {} if window is None else {"evidence": window}
    player = start(manifest, "x" * 400)
    for number in range(1, turns):
        player.model(text_answer("y" * 400))
        player = following(player, manifest, f"{number % 10}" * 400, turn=f"P{number}").start()
    return player.model(text_answer("y" * 400, **members))


def text_answer(words: str, **members: Any) -> dict[str, Any]:
    return {"output": [text(words)], **members}


NEARLY_FULL = {"usage": {"totalTokens": 900}, "evidence": told(1000, 120)}


def full(manifest: dict[str, Any] = PLAIN, input_: Any = "go on", **options: Any) -> Player:
    """A started turn that needs a compaction before its first step."""
    first = start(manifest, "x" * 900).model(text_answer("y" * 900, **NEARLY_FULL))
    return following(first, manifest, input_, **options).start()


def asked(player: Player, effect_id: str) -> Any:
    model_call = player.asked[effect_id].model_call
    assert model_call is not None
    return jsjson.loads(model_call.text())


def request(player: Player, effect_id: str = FIRST) -> str:
    """What a summary call asks."""
    found: str = asked(player, effect_id)["prompt"][1]["content"][0]["text"]
    return found


def test_a_conversation_past_its_threshold_is_summed_up_before_the_step() -> None:
    player = full()
    assert list(player.in_flight) == [FIRST]
    assert player.document()["context"] == {
        "invocationId": "compaction-step_T2_0_1",
        "compaction": {"trigger": "threshold", "tokensBefore": 904, "keptTokens": 233},
    }
    document = asked(player, FIRST)
    assert document["tools"] == []
    assert document["model"] == {"controls": {"maxOutputTokens": 256}}
    assert document["executionId"] == "S1"
    assert document["prompt"][0]["content"][0]["text"].endswith("do not continue the task yourself.")
    assert request(player) == (
        f"<conversation>\n[User]: {'x' * 900}\n</conversation>\n\n"
        "Write the summary with these sections, leaving out a section that has nothing:\n"
        "## Goal\n## Constraints and preferences\n## Progress\n## Key decisions\n## Next steps\n"
        "## Critical context\n"
        "If a previous summary is given, merge it with the new conversation into one summary."
    )
    player.model(" Said x. \n")
    assert list(player.in_flight) == ["T2:0:model:invocation_T2_0_1"]
    assert player.prompt()[1] == {
        "kind": "message",
        "role": "user",
        "content": [
            {
                "type": "text",
                "text": "Earlier parts of this conversation were summarized to fit the context window.\n"
                "<summary>\nSaid x.\n</summary>",
            }
        ],
    }
    player.model("ok")
    assert player.entries[0] == {
        "kind": "compaction",
        "turnId": "turn_T2_0_1",
        "stepId": "step_T2_0_1",
        "summary": "Said x.",
        "trigger": "threshold",
        "tokensBefore": 904,
        "tokensAfter": 235,
    }
    assert [entry["kind"] for entry in player.entries[1:]] == [
        "candidate",
        "final",
        "input",
        "candidate",
        "final",
    ]
    assert player.state["revision"] == 5


@pytest.mark.parametrize("counted", [2.0**53, 1e21])
def test_a_count_past_what_integers_hold_is_passed_on(counted: float) -> None:
    usage = {"usage": {"totalTokens": counted}, "evidence": told(1000, 120)}
    first = start(PLAIN, "x" * 900).model(text_answer("y" * 900, **usage))
    player = following(first, PLAIN, "go on").start()
    assert player.document()["context"]["compaction"]["tokensBefore"] == counted + 4
    player.complete(FIRST, "Summary.").model("ok")
    assert player.entries[0]["tokensBefore"] == counted + 4
    assert player.result.status == "completed"


def test_exactly_the_threshold_is_not_past_it() -> None:
    first = start(PLAIN).model(
        {"output": [text("y" * 400)], "usage": {"totalTokens": 876}, "evidence": told(1000, 120)}
    )
    assert following(first, PLAIN, "go on").start().only("model") == "T2:0:model:invocation_T2_0_1"


def test_nothing_before_the_kept_end_means_no_compaction() -> None:
    first = start(PLAIN, "x").model(
        {"output": [text("y")], "usage": {"totalTokens": 900}, "evidence": told(1000, 100)}
    )
    assert following(first, PLAIN, "go").start().only("model") == "T2:0:model:invocation_T2_0_1"


def test_what_the_user_said_in_this_turn_is_kept_whatever_it_takes() -> None:
    player = long_session(ONE, told(1000, 100))
    player = following(player, ONE, "z" * 1200).start()
    player.model(
        {"output": [call("c1", "a")], "usage": {"totalTokens": 890}, "evidence": told(1000, 100)}
    ).tool("r" * 400)
    effect_id = "T2:0:model:compaction-step_T2_0_2"
    assert f"[User]: {'z' * 1200}" in request(player, effect_id)
    player.model("Summary.").model("done")
    kinds = [entry["kind"] for entry in player.entries]
    assert kinds == ["compaction", "input", "candidate", "tool-results", "candidate", "final"]
    assert player.entries[1]["event"]["text"] == "z" * 1200
    assert player.entries[0]["tokensAfter"] == 302 + 6 + 105 + 2


# Overflows


@pytest.mark.spec("agent-engine:23.28")
def test_a_second_overflow_in_a_row_fails_the_turn() -> None:
    player = following(long_session(turns=2), PLAIN, "go", turn="T1").start()
    player.model(OVERFLOW)
    assert list(player.in_flight) == ["T1:0:model:compaction-step_T1_0_1-overflow"]
    assert player.document()["context"]["compaction"]["trigger"] == "overflow"
    player.model("Summary.")
    assert list(player.in_flight) == ["T1:0:model:invocation_T1_0_2"]
    player.model(OVERFLOW)
    assert player.error == {"code": "model.context_overflow", "message": "too long"}
    assert player.entries[0]["stepId"] == "step_T1_0_1"
    assert not any(entry["kind"] == "candidate" and "T1" in entry["turnId"] for entry in player.entries[2:])


def test_a_step_between_two_overflows_allows_another_compaction() -> None:
    player = following(long_session(ONE, turns=2), ONE, "go").start()
    player.model(OVERFLOW).model("Summary.").model(calls(text("w" * 4000), call("c1", "a")))
    player.tool("r" * 4000).model(OVERFLOW)
    assert list(player.in_flight) == ["T2:0:model:compaction-step_T2_0_3-overflow"]
    assert "<previous-summary>\nSummary.\n</previous-summary>\n\n<conversation>\n" in request(
        player, "T2:0:model:compaction-step_T2_0_3-overflow"
    )


def test_without_a_window_everything_older_is_one_chunk() -> None:
    player = following(long_session(turns=12), PLAIN, "go").start().model(OVERFLOW)
    document = asked(player, f"{FIRST}-overflow")
    assert document["model"] == {"controls": {"maxOutputTokens": 6553}}
    assert "partial" not in player.document()["context"]["compaction"]
    assert player.model("S").only("model") == "T2:0:model:invocation_T2_0_2"


def test_an_overflow_retry_counts_as_a_step_of_the_segment() -> None:
    first = long_session(turns=2)
    player = following(first, PLAIN, "go", yield_after=YieldAfter(steps=1)).start()
    player.model(OVERFLOW).model("Summary.")
    assert player.result.status == "yielded"
    assert player.entries[0]["kind"] == "compaction"


# Chunks


def worded(count: int) -> list[str]:
    return ["x" * 400 for _ in range(count)]


@pytest.mark.parametrize(
    ("texts", "window", "sizes"),
    [
        (worded(30), None, [30]),
        (worded(30), Window(2000, 100), [10, 10, 10]),
        (worded(30), Window(3124, 100), [20, 10]),
        (["x" * 8000, "y", "z" * 4000], Window(100, None), [1, 1, 1]),
        (["", "x" * 4000, ""], Window(100, None), [3]),
        (["😀" * 2000, "x"], Window(100, None), [1, 1]),
    ],
)
def test_a_chunk_ends_before_the_entry_that_would_not_fit(
    texts: list[str], window: Window | None, sizes: list[int]
) -> None:
    chunks = list(chunks_of(texts, window))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [item for chunk in chunks for item in chunk] == texts


@pytest.mark.parametrize(
    ("window", "limit"), [(None, 6553), (Window(4096, 512), 409), (Window(100, None), 256)]
)
def test_a_summary_may_take_most_of_the_reserve(window: Window | None, limit: int) -> None:
    assert summary_limit(window) == limit


def test_each_chunk_is_merged_into_the_summary_of_the_ones_before() -> None:
    player = following(long_session(PLAIN, told(1500, 100), turns=14), PLAIN, "go").start()
    assert list(player.in_flight) == [FIRST]
    assert player.document()["context"]["compaction"]["partial"] is True
    player.model("One.")
    assert list(player.in_flight) == [f"{FIRST}-1"]
    assert player.document()["context"]["invocationId"] == "compaction-step_T2_0_1-1"
    assert request(player, f"{FIRST}-1").startswith(
        "<previous-summary>\nOne.\n</previous-summary>\n\n<conversation>\n["
    )
    player.model("Two.")
    assert list(player.in_flight) == [f"{FIRST}-2"]
    assert "partial" not in player.document()["context"]["compaction"]
    player.model("Three.").model("ok")
    assert player.entries[0]["summary"] == "Three."
    assert player.result.status == "completed"


def test_a_pending_chunk_makes_the_segment_wait_and_the_earlier_ones_are_reused() -> None:
    from gateway.engine.contract import RecordedOutcome

    first = long_session(PLAIN, told(1500, 100), turns=14)
    player = following(first, PLAIN, "go").start().model("One.")
    player.pending(f"{FIRST}-1")
    assert player.result.effect_ids == (f"{FIRST}-1",)
    recorded = [RecordedOutcome(FIRST, player.hashes[FIRST], {"value": "One."})]
    again = following(first, PLAIN, "go", outcomes=recorded).start()
    assert list(again.in_flight) == [f"{FIRST}-1"]
    assert again.hashes == player.hashes


# Answers


@pytest.mark.parametrize(
    ("value", "summary"),
    [
        (" words\n", "words"),
        ({"output": [text(" a"), {"type": "json", "value": 1}, text("b ")]}, "ab"),
        ({"output": [text("a"), call("c", "x"), None, {"type": "new"}, "b"], "usage": 5}, "a"),
    ],
)
def test_the_summary_is_what_the_answer_says_in_text(value: Any, summary: str) -> None:
    player = full().model(value).model("ok")
    assert player.entries[0]["summary"] == summary


@pytest.mark.spec("agent-engine:23.29")
@pytest.mark.parametrize("value", ["", "  \n", {"output": []}, {"output": [{"type": "json", "value": "x"}]}])
def test_an_empty_summary_fails_the_turn(value: Any) -> None:
    player = full().model(value)
    assert player.error == {
        "code": "model.invalid_output",
        "message": "Compacting the conversation failed: the model returned an empty summary.",
    }
    assert [entry["kind"] for entry in player.entries] == ["input", "candidate", "final", "input"]


def test_a_failed_summary_call_fails_the_turn_with_its_code() -> None:
    failure = {"kind": "failed", "code": "auth", "message": "no key", "retryable": False}
    player = full().model(failure)
    assert player.error == {
        "code": "model.auth",
        "message": "Compacting the conversation failed: no key",
    }
    player = following(long_session(turns=2), PLAIN, "go").start().model(OVERFLOW).model(OVERFLOW)
    assert player.error == {
        "code": "model.context_overflow",
        "message": "Compacting the conversation failed: too long",
    }


@pytest.mark.parametrize("value", [None, 5, [], {"kind": "failed", "code": "x"}, {"text": "x"}])
def test_an_answer_that_is_none_fails_the_execution(value: Any) -> None:
    assert full().model(value).error["code"] == "execution.failed"


def test_a_host_failure_fails_the_execution() -> None:
    player = full()
    player.fail(FIRST, "internal", "core broke")
    assert player.error == {"code": "execution.failed", "message": "core broke"}


def test_an_abort_during_a_summary_ends_cancelled_and_uncompacted() -> None:
    player = full().abort()
    assert player.result.status == "cancelled"
    assert [entry["kind"] for entry in player.entries] == ["input", "candidate", "final", "input"]
    late = full().abort(stopping=False).model("Summary.")
    assert late.result.status == "cancelled"
    assert late.entries[0]["kind"] == "compaction"


# With the rest


def test_hooks_see_the_compacted_conversation() -> None:
    manifest = agent_of(capability("rules", hooks="before-step"))
    first = start(manifest, "x" * 900).hook().model(text_answer("y" * 900, **NEARLY_FULL))
    player = following(first, manifest, "go").start().model("Summary.")
    assert "<summary>" in player.document()["input"]["messages"][0]["content"][0]["text"]


def test_a_prompt_that_was_sent_stays_what_it_was() -> None:
    player = full(ONE)
    before = json_of(asked(player, FIRST))
    player.model("Summary.")
    step = "T2:0:model:invocation_T2_0_1"
    shown = json_of(asked(player, step))
    player.model(
        {"output": [text("w" * 4000), call("c1", "a")], "usage": {"totalTokens": 990}, "evidence": told(1000)}
    ).tool("r" * 4000)
    assert player.only("model").startswith("T2:0:model:compaction-")
    assert (asked(player, FIRST), asked(player, step)) == (before, shown)


def test_a_compacted_session_goes_on_in_its_next_turn() -> None:
    first = full().model("Summary.").model("ok")
    player = following(first, PLAIN, "again", turn="T3").start()
    assert player.only("model") == "T3:0:model:invocation_T3_0_1"
    assert "<summary>\nSummary.\n</summary>" in player.prompt()[1]["content"][0]["text"]
