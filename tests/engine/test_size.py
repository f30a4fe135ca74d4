from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.agent.compaction_size import cut_of, passes_threshold
from gateway.engine.agent.entry_facts import Window, tokens_of
from gateway.engine.agent.entry_text import clip, entry_parts, entry_tokens
from gateway.engine.agent.transcript import Transcript
from protocol.transcript import Entry, entries_of


def message(words: str, turn: str = "t") -> dict[str, Any]:
    return {"kind": "input", "turnId": turn, "event": {"kind": "user-message", "text": words}}


def candidate(words: str = "", **members: Any) -> dict[str, Any]:
    output = [{"type": "text", "text": words}]
    return {"kind": "candidate", "turnId": "t", "stepId": "s", "candidate": {"output": output, **members}}


def results(output: Any) -> dict[str, Any]:
    result = {"callId": "c", "toolName": "t", "kind": "completed", "output": output}
    return {"kind": "tool-results", "turnId": "t", "stepId": "s", "results": [result]}


def window(size: Any, most: Any = None) -> dict[str, Any]:
    extras = {"contextWindow": size} if most is None else {"contextWindow": size, "maxOutputTokens": most}
    return {"extras": extras}


@pytest.mark.spec("agent-engine:23.30")
def test_a_long_output_is_cut_where_a_summary_is_asked_for() -> None:
    (part,) = entry_parts(results("x" * 2001), limit=2000)
    assert part == f"[Tool t result]: {'x' * 2000}… [1 more characters]"
    assert clip("x" * 2000, 2000) == "x" * 2000
    assert clip({"a": "é" * 5}, 3) == '{"a… [10 more characters]'
    assert clip("a😀", 2) == "a\ud83d… [1 more characters]"


@pytest.mark.spec("agent-engine:23.31")
def test_an_astral_character_counts_two_units() -> None:
    assert entry_tokens(message("😀" * 10)) == -(-(len("[User]: ") + 20) // 4)


@pytest.mark.spec("agent-engine:23.32")
def test_the_estimate_is_the_newest_count_and_what_came_after_it() -> None:
    transcript = Transcript(
        entries_of([candidate(usage={"totalTokens": 900}, evidence=window(16384, 2048)), message("x" * 400)])
    )
    assert transcript.window is not None
    assert transcript.window.reserve == 2048
    assert transcript.estimate() == 1002


def test_the_parts_of_each_kind_of_entry() -> None:
    def parts(entry: dict[str, Any]) -> list[str]:
        return entry_parts(entry)

    event: dict[str, Any] = {"kind": "approve", "interactionId": "i", "approved": True}
    entry = {"kind": "input", "turnId": "t", "event": event}
    assert parts(entry) == ["[User approved a request]"]
    assert parts({**entry, "event": {**event, "approved": False}}) == ["[User denied a request]"]
    respond = {"kind": "respond", "interactionId": "i", "value": {"a": 1}}
    assert parts({**entry, "event": respond}) == ['[User answered]: {"a":1}']
    content = [{"type": "text", "text": "see"}, {"type": "media", "mediaType": "image/png", "reference": 1}]
    assert parts({**entry, "event": {"kind": "interrupt", "content": content}}) == ["[User]: see [image/png]"]
    blocks = [
        {"type": "text", "text": ""},
        {"type": "reasoning", "text": "hidden"},
        {"type": "json", "value": [1]},
        {"type": "tool-call", "id": "c", "name": "t", "args": {"b": 1}},
    ]
    entry = {"kind": "candidate", "turnId": "t", "stepId": "s", "candidate": {"output": blocks}}
    assert parts(entry) == ["[Assistant]: [1]", '[Assistant called t]: {"b":1}']
    denied = {"callId": "c", "toolName": "t", "kind": "denied", "reason": "no"}
    failed = {"callId": "c", "toolName": "t", "kind": "failed", "code": "x", "message": "m"}
    entry = {"kind": "tool-results", "turnId": "t", "stepId": "s", "results": [denied, failed]}
    assert parts(entry) == ["[Tool t denied]: no", "[Tool t failed]: m"]
    assert parts({"kind": "final", "turnId": "t", "stepId": "s", "output": "x"}) == []
    assert parts({"kind": "compaction", "summary": "S"}) == [
        "Earlier parts of this conversation were summarized to fit the context window.\n<summary>\nS\n</summary>"
    ]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"totalTokens": 7, "inputTokens": 100}, 7),
        (
            {
                "inputTokens": 1,
                "cachedTokens": 2,
                "cacheWriteTokens": 3,
                "outputTokens": 4,
                "reasoningTokens": 9,
            },
            10,
        ),
        ({"reasoningTokens": 9}, None),
        ({"totalTokens": 0}, None),
    ],
)
def test_what_a_model_counted(usage: Any, counted: float | None) -> None:
    transcript = Transcript(entries_of([message("xx"), candidate("yy", usage=usage)]))
    own = sum(entry_tokens(entry) for entry in (message("xx"), candidate("yy")))
    assert transcript.estimate() == (own if counted is None else counted)


def test_the_estimate_grows_with_what_is_appended() -> None:
    transcript = Transcript(entries_of([message("a" * 40)]))
    for _ in range(3):
        transcript.append(message("b" * 40))
        assert transcript.estimate() == sum(map(tokens_of, transcript.entries))
    transcript.append(candidate(usage={"totalTokens": 5}))
    assert transcript.estimate() == 5
    transcript.append(results({"x": 1}))
    assert transcript.estimate() == 5 + entry_tokens(results({"x": 1}))


@pytest.mark.parametrize(
    ("size", "most", "reserve"),
    [(16384, 2048, 2048), (100000, None, 8192), (1000000, 500000, 16384), (4096, 4000, 1024), (10.5, 0, 2)],
)
def test_the_reserve_is_bounded_three_ways(size: float, most: float | None, reserve: float) -> None:
    transcript = Transcript(entries_of([candidate(evidence=window(size, most))]))
    assert transcript.window is not None
    assert transcript.window.reserve == reserve


@pytest.mark.parametrize("size", [0, -1, "big", None, True])
def test_no_window_means_no_threshold(size: Any) -> None:
    transcript = Transcript(entries_of([candidate(evidence=window(size)), message("x" * 1000)]))
    assert transcript.window is None
    assert not passes_threshold(transcript)


def test_an_endless_window_never_fills() -> None:
    assert Window(float("inf"), None).reserve == 8192


def worked() -> list[Entry]:
    """The window of 4096 tokens with entries of 102, 210, 1005, 310 and 505 tokens."""
    return entries_of(
        [
            message("x" * (408 - len("[User]: "))),
            candidate("x" * (840 - len("[Assistant]: "))),
            results("x" * (4020 - len("[Tool t result]: "))),
            candidate(
                "x" * (1240 - len("[Assistant]: ")), usage={"totalTokens": 3100}, evidence=window(4096, 512)
            ),
            results("x" * (2020 - len("[Tool t result]: "))),
        ]
    )


def test_the_threshold_and_the_cut_of_the_worked_example() -> None:
    transcript = Transcript(worked())
    assert [tokens_of(entry) for entry in transcript.entries] == [102, 210, 1005, 310, 505]
    assert transcript.window is not None
    assert transcript.window.reserve == 512
    assert transcript.estimate() == 3605
    assert cut_of(transcript) == 3
    assert passes_threshold(transcript)


def test_results_are_never_kept_without_their_calls() -> None:
    entries = [message("x" * 400), candidate("y"), results("z" * 2000)]
    transcript = Transcript(entries_of(entries))
    assert cut_of(transcript) == 1
    assert cut_of(Transcript(entries_of(entries[1:]))) is None


def test_a_summary_is_never_kept_as_an_entry() -> None:
    summary = {
        "kind": "compaction",
        "turnId": "t",
        "stepId": "s",
        "summary": "S",
        "trigger": "threshold",
        "tokensBefore": 10,
        "tokensAfter": 5,
    }
    assert cut_of(Transcript(entries_of([summary, message("x")]))) is None
    assert cut_of(Transcript(entries_of([summary, message("x" * 400), message("y" * 400)]))) == 2
    assert cut_of(Transcript()) is None
    shown = Transcript(entries_of([summary]))
    shown.begin_turn("t")
    assert b"<summary>\\nS\\n</summary>" in shown.prompt()[0][0]
