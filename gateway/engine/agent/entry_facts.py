"""What the engine keeps of a transcript entry, so that no entry is read twice.

The facts live on the entry itself and travel with it through the transcript cache into later segments of
the session. An entry that has facts has been checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.engine.agent.entry_text import entry_tokens
from gateway.engine.agent.prompt_items import (
    NOTHING,
    candidate_items,
    compaction_items,
    input_items,
    replays_in_turn_only,
    result_items,
)
from gateway.engine.agent.state_shapes import ENTRY
from gateway.engine.fragments import Fragment
from gateway.engine.shapes import is_number
from protocol.transcript import Entry


@dataclass(frozen=True, slots=True)
class Window:
    """The model's context as its newest answer told it, in tokens."""

    size: float
    max_output: float | None

    @property
    def reserve(self) -> float:
        """Tokens kept free for the answer."""
        answer = 8192 if self.max_output is None else self.max_output
        return min(answer, 16384, floor(self.size / 4))


@dataclass(slots=True)
class EntryFacts:
    """Facts about one entry.

    `items` are its prompt items, each with a comma before it; `past_items` those in later turns where they
    differ. `usage` are the tokens the model counted up to this entry, if it did. `tokens` is the entry's
    own size in tokens, computed when first needed.
    """

    kind: str
    turn_id: str
    user_message: bool
    items: Fragment
    past_items: Fragment | None
    usage: float | None
    window: Window | None
    tokens: int | None = None

    def items_in(self, turn_id: str) -> Fragment:
        """The prompt items in a model call of that turn."""
        if self.past_items is None or turn_id == self.turn_id:
            return self.items
        return self.past_items


def floor(number: float) -> float:
    """The integral part of a number; infinities stay."""
    return math.floor(number) if math.isfinite(number) else number


def facts_of(entry: Entry, where: str = "entry") -> EntryFacts:
    """The entry's facts, made now if it has none. Raises ShapeError when it isn't an entry."""
    facts = entry.facts
    if isinstance(facts, EntryFacts):
        return facts
    value = entry.value()
    ENTRY(value, where)
    assert isinstance(value, dict)
    made = make_facts(value, entry.plain)
    entry.facts = made
    return made


def tokens_of(entry: Entry) -> int:
    """The tokens the entry counts for."""
    facts = facts_of(entry)
    if facts.tokens is None:
        value = entry.value()
        assert isinstance(value, dict)
        facts.tokens = entry_tokens(value)
    return facts.tokens


def make_facts(entry: Mapping[str, Any], plain: bool) -> EntryFacts:
    """The facts of a valid entry's value. `plain` as in `protocol.jsjson.dumps`."""
    kind = entry["kind"]
    items, past_items = NOTHING, None
    usage: float | None = None
    window: Window | None = None
    user_message = False
    if kind == "input":
        event = entry["event"]
        user_message = event["kind"] in ("user-message", "interrupt")
        items = input_items(event, plain)
    elif kind == "candidate":
        candidate = entry["candidate"]
        items = candidate_items(candidate, plain, current_turn=True)
        if replays_in_turn_only(candidate):
            past_items = candidate_items(candidate, plain, current_turn=False)
        usage = _counted_tokens(candidate.get("usage", {}))
        window = _window(candidate.get("evidence", {}).get("extras", {}))
    elif kind == "tool-results":
        items = result_items(entry["results"], plain)
    elif kind == "compaction":
        items = compaction_items(entry["summary"])
    return EntryFacts(kind, entry["turnId"], user_message, items, past_items, usage, window)


def _counted_tokens(usage: Mapping[str, Any]) -> float | None:
    total: float = usage.get("totalTokens", 0)
    if "totalTokens" not in usage:
        counted = ("inputTokens", "cachedTokens", "cacheWriteTokens", "outputTokens")
        total = sum(usage.get(name, 0) for name in counted)
    return total if total > 0 else None


def _window(extras: Mapping[str, Any]) -> Window | None:
    size = extras.get("contextWindow")
    if not is_number(size) or size <= 0:
        return None
    most = extras.get("maxOutputTokens")
    return Window(size, most if is_number(most) and most > 0 else None)
