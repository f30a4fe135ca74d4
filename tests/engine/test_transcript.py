"""A transcript that goes on from what another left."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.agent.transcript import Transcript
from protocol.transcript import Entry


def message(words: str, turn: str) -> dict[str, Any]:
    return {"kind": "input", "turnId": turn, "event": {"kind": "user-message", "text": words}}


def candidate(turn: str, *blocks: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"kind": "candidate", "turnId": turn, "stepId": "s", "candidate": {"output": [*blocks], **members}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thought(words: str) -> dict[str, Any]:
    return {"type": "reasoning", "text": words, "providerMetadata": {"replay": "turn"}}


def call(**args: Any) -> dict[str, Any]:
    return {"type": "tool-call", "id": "c", "name": "n", "args": args}


WINDOW = {"extras": {"contextWindow": 1000, "maxOutputTokens": 100}}
PLAIN = [message("hello", "t1"), candidate("t1", text("hi"))]
REORDERED = [message("hello", "t1"), candidate("t1", call(b=1, a=2)), candidate("t1", text("hi"))]
THOUGHTFUL = [message("hello", "t1"), candidate("t1", thought("hm"), text("hi"))]
COUNTED = [message("hello", "t1"), candidate("t1", text("hi"), usage={"totalTokens": 700}, evidence=WINDOW)]


def _facts(transcript: Transcript) -> tuple[Any, ...]:
    canonical, wire = transcript.prompt()
    return transcript.entries, canonical, wire, transcript.window, transcript.estimate()


def _anew(transcript: Transcript, turn: str) -> Transcript:
    made = Transcript([Entry(entry.text, plain=entry.plain) for entry in transcript.entries])
    made.begin_turn(turn)
    return made


@pytest.mark.parametrize("first", [PLAIN, REORDERED, THOUGHTFUL, COUNTED])
@pytest.mark.parametrize("second", [PLAIN, REORDERED, THOUGHTFUL, COUNTED])
def test_what_is_known_of_earlier_entries_is_what_they_make_when_read_again(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    transcript = Transcript()
    for number, turn in enumerate((first, second, PLAIN)):
        turn_id = f"t{number}"
        transcript = Transcript(transcript.leave())
        transcript.begin_turn(turn_id)
        assert _facts(transcript) == _facts(_anew(transcript, turn_id))
        for entry in turn:
            transcript.append({**entry, "turnId": turn_id})
            assert _facts(transcript) == _facts(_anew(transcript, turn_id))


def test_two_that_go_on_from_the_same_entries_know_nothing_of_each_other() -> None:
    before = Transcript()
    before.begin_turn("t1")
    for entry in PLAIN:
        before.append(entry)
    left = before.leave()
    prompts = []
    for words in ("one", "two"):
        transcript = Transcript(left)
        transcript.begin_turn("t2")
        transcript.append(message(words, "t2"))
        prompts.append(b"".join(transcript.prompt()[0]))
    assert [b"one" in prompt for prompt in prompts] == [True, False]
    assert [b"two" in prompt for prompt in prompts] == [False, True]
    assert len(left) == len(PLAIN)


def test_a_prompt_made_before_stays_as_it_was_when_a_later_item_is_sent_in_another_order() -> None:
    transcript = Transcript()
    transcript.begin_turn("t1")
    transcript.append(PLAIN[0])
    _, sent = transcript.prompt()
    taken = sent[: len(sent)]
    transcript.append(candidate("t1", call(b=1, a=2)))
    assert sent[: len(taken)] == taken
    canonical, wire = transcript.prompt()
    assert (b'"args":{"a":2,"b":1}' in canonical[-1], b'"args":{"b":1,"a":2}' in wire[-1]) == (True, True)


def test_an_entry_that_comes_before_the_turn_is_in_its_prompt() -> None:
    before = Transcript()
    before.begin_turn("t1")
    before.append(PLAIN[0])
    transcript = Transcript(before.leave())
    transcript.append(message("later", "t1"))
    transcript.begin_turn("t1")
    assert _facts(transcript) == _facts(_anew(transcript, "t1"))
    assert b"later" in transcript.prompt()[0][-1]
