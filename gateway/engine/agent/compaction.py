"""Making a long conversation short: its older part becomes a summary (agent-engine 17b)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from gateway.engine.agent import texts
from gateway.engine.agent.candidate import model_failure
from gateway.engine.agent.compaction_size import (
    chunks_of,
    cut_of,
    passes_threshold,
    summary_limit,
)
from gateway.engine.agent.context import AgentContext, Place
from gateway.engine.agent.effects import summary_effect
from gateway.engine.agent.entry_facts import facts_of, tokens_of
from gateway.engine.agent.entry_text import entry_parts, tokens_of_units
from gateway.engine.contract import ABSENT, Absent
from gateway.engine.failures import EngineFailure
from gateway.engine.tasks import Work
from protocol.jsjson import JsonValue
from protocol.manifests.shape import JS_WHITESPACE
from protocol.transcript import Entry
from protocol.utf16 import utf16_length

Trigger: TypeAlias = Literal["threshold", "overflow"]

CLIPPED_UNITS: Final = 2000
"""Where long values are cut in what a summary is asked for, in UTF-16 code units."""


SUMMARY_CALL: Final = "compaction-"
"""How the invocation ids of summary calls begin."""


class Compactor:
    """Compacts the transcript of one agent."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    def before_step(self, place: Place) -> Work[None]:
        """Compacts if the conversation has grown past what the model's window allows."""
        if passes_threshold(self._context.state.transcript):
            yield from self.compact(place, "threshold")

    def compact(self, place: Place, trigger: Trigger) -> Work[bool]:
        """Compacts; False when there is nothing to sum up. A record point when there was.

        Raises EngineFailure when a summary can't be had, and what the host raises.
        """
        state = self._context.state
        transcript = state.transcript
        cut = cut_of(transcript)
        if cut is None:
            return False
        entries = transcript.entries
        previous = _summary_of(entries[0])
        older = entries[0 if previous is None else 1 : cut]
        tail = [*_messages_of(place.turn_id, older), *entries[cut:]]
        kept_tokens = sum(map(tokens_of, tail))
        about = {
            "trigger": trigger,
            "tokensBefore": transcript.estimate(),
            "keptTokens": kept_tokens,
        }
        summary = yield from self._summarize(place, about, older, previous)
        compacted = {
            "kind": "compaction",
            "turnId": place.turn_id,
            "stepId": place.step_id,
            "summary": summary,
            "trigger": trigger,
            "tokensBefore": about["tokensBefore"],
            "tokensAfter": kept_tokens + tokens_of_units(utf16_length(summary)),
        }
        transcript.compact(compacted, tail)
        state.record()
        return True

    def _summarize(
        self, place: Place, about: Mapping[str, JsonValue], older: Sequence[Entry], previous: str | None
    ) -> Work[str]:
        """The summary of the entries: chunk after chunk, each together with the summary so far."""
        context = self._context
        window = context.state.transcript.window
        identity = f"{SUMMARY_CALL}{place.step_id}"
        if about["trigger"] == "overflow":
            identity += "-overflow"
        chunks = list(chunks_of(_texts(older), window))
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            request = texts.summary_request(previous, chunk)
            effect = summary_effect(
                context.origin,
                invocation_id=f"{identity}-{number}" if number else identity,
                compaction={**about} if last else {**about, "partial": True},
                call=_summary_call(request, summary_limit(window), context.state.execution_id),
            )
            answer = yield from context.host.ask(effect)
            previous = _read_summary(answer.outcome.get("value", ABSENT))
        assert previous is not None
        return previous


def _summary_of(entry: Entry) -> str | None:
    if facts_of(entry).kind != "compaction":
        return None
    value: Any = entry.value()
    summary: str = value["summary"]
    return summary


def _messages_of(turn_id: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """What the user said in this turn: it is kept whatever it takes."""
    for entry in entries:
        facts = facts_of(entry)
        if facts.user_message and facts.turn_id == turn_id:
            yield entry


def _texts(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        value: Any = entry.value()
        yield "\n".join(entry_parts(value, CLIPPED_UNITS))


def _summary_call(request: str, max_tokens: int, execution_id: str) -> dict[str, JsonValue]:
    return {
        "prompt": [
            {"kind": "instructions", "role": "system", "content": [_text_part(texts.SUMMARY_SYSTEM)]},
            {"kind": "message", "role": "user", "content": [_text_part(request)]},
        ],
        "tools": [],
        "model": {"controls": {"maxOutputTokens": max_tokens}},
        "executionId": execution_id,
    }


def _text_part(text: str) -> JsonValue:
    return {"type": "text", "text": text}


def _read_summary(value: JsonValue | Absent) -> str:
    """The summary in a model's answer. Raises EngineFailure."""
    failure = model_failure(value)
    if failure is not None:
        raise EngineFailure(failure.code, texts.compaction_failed(failure.message))
    summary = (value if isinstance(value, str) else _text_of(value)).strip(JS_WHITESPACE)
    if not summary:
        raise EngineFailure("model.invalid_output", texts.EMPTY_SUMMARY)
    return summary


def _text_of(value: JsonValue | Absent) -> str:
    blocks = value.get("output") if isinstance(value, dict) else None
    if not isinstance(blocks, list):
        raise EngineFailure("execution.failed", "The answer to a summary request has no output")
    said = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "".join(text for text in said if isinstance(text, str))
