"""A running agent's transcript: its entries, the prompt they make, and how large they count.

Everything here grows with what is appended and never goes over the history again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engine.agent.entry_facts import EntryFacts, Window, facts_of, make_facts, tokens_of
from gateway.engine.agent.entry_text import entry_tokens
from protocol.transcript import Entry


def _made(value: dict[str, Any], plain: bool) -> tuple[Entry, EntryFacts]:
    """An entry of the engine's own making. Not checked: what a model counts may pass what is stored."""
    entry = Entry.from_value(value, plain)
    entry.facts = facts = make_facts(value, plain)
    return entry, facts


@dataclass(frozen=True, slots=True)
class _Known:
    """What a transcript has come to: its prompt items, and how far its size is counted."""

    count: int
    canonical: list[bytes]
    wire: list[bytes]
    window: Window | None
    anchor: float | None
    anchored: int
    counted: int
    tokens: int


class Entries(list[Entry]):
    """A transcript's entries as it leaves them, with all that one that goes on from them need not look at again."""

    __slots__ = ("known",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        super().__init__(entries)
        self.known: _Known | None = None


class Transcript:
    """The entries of one agent's execution.

    Raises ShapeError from the constructor when a given entry isn't one (agent-engine 12).
    """

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._turn_id: str | None = None
        known = entries.known if isinstance(entries, Entries) else None
        if known is None or known.count != len(entries):
            self._fill(entries)
        else:
            self._go_on(entries, known)

    def _fill(self, entries: Sequence[Entry]) -> None:
        self.entries = Entries()
        self._canonical: list[bytes] = []
        self._wire: list[bytes] = self._canonical  # one list as long as both texts of all items are the same
        self._items_stand = False  # the items are made of all entries, and are those of a later turn, too
        self._window: Window | None = None
        self._anchor: float | None = None  # tokens that a model counted up to the entry before _from
        self._from = 0  # entries from here on are counted by their text
        self._counted = 0  # entries counted so far
        self._tokens = 0  # tokens of the entries _from to _counted
        for index, entry in enumerate(entries):
            facts = entry.facts
            if not isinstance(facts, EntryFacts):
                facts = facts_of(entry, f"state.transcript[{index}]")
            if facts.window is None and facts.usage is None:
                self.entries.append(entry)
            else:
                self._take(entry, facts)

    def _go_on(self, entries: Sequence[Entry], known: _Known) -> None:
        """Copies what is known: another run may go on from the same entries."""
        self.entries = Entries(entries)
        self._canonical = known.canonical.copy()
        self._wire = self._canonical if known.wire is known.canonical else known.wire.copy()
        self._items_stand = True
        self._window = known.window
        self._anchor = known.anchor
        self._from = known.anchored
        self._counted = known.counted
        self._tokens = known.tokens

    def leave(self) -> Sequence[Entry]:
        """The entries, for a result: nothing is appended any more."""
        if self._items_stand:
            self.entries.known = _Known(
                len(self.entries),
                self._canonical,
                self._wire,
                self._window,
                self._anchor,
                self._from,
                self._counted,
                self._tokens,
            )
        return self.entries

    def _take(self, entry: Entry, facts: EntryFacts) -> None:
        self.entries.append(entry)
        if facts.window is not None:
            self._window = facts.window
        if facts.usage is not None:
            self._anchor = facts.usage
            self._from = self._counted = len(self.entries)
            self._tokens = 0

    def append(self, value: dict[str, Any], *, plain: bool = False) -> None:
        """Appends an entry. `plain` as in `protocol.jsjson.dumps`."""
        entry, facts = _made(value, plain)
        self._take(entry, facts)
        if self._window is not None and facts.usage is None:
            facts.tokens = entry_tokens(value)
        if self._turn_id is None:
            self._items_stand = False
        else:
            self._show(facts, self._turn_id)

    def compact(self, summary: dict[str, Any], tail: Sequence[Entry]) -> None:
        """Puts a compaction entry and a tail in the place of all; the turn goes on. Prompts made before stay
        as they were."""
        self._fill([_made(summary, plain=False)[0], *tail])
        if self._turn_id is not None:
            self.begin_turn(self._turn_id)

    # Prompt

    def begin_turn(self, turn_id: str) -> None:
        """Sets the turn that prompts are made for; some reasoning is shown in its own turn only."""
        self._turn_id = turn_id
        if self._items_stand:
            return
        self._canonical = self._wire = []
        self._items_stand = True
        for entry in self.entries:
            self._show(facts_of(entry), turn_id)

    def _show(self, facts: EntryFacts, turn_id: str) -> None:
        items = facts.items
        if facts.past_items is not None:
            items = facts.items_in(turn_id)
            self._items_stand = False
        canonical, wire = items.canonical, items.wire
        if not canonical:
            return
        if self._wire is not self._canonical:
            self._wire.append(wire)
        elif wire is not canonical:
            self._wire = [*self._canonical, wire]
        self._canonical.append(canonical)

    def prompt(self) -> tuple[list[bytes], list[bytes]]:
        """The transcript's prompt items for hashing and for sending, each with a comma before it.

        The lists are the transcript's own and must not be changed.
        """
        return self._canonical, self._wire

    def candidates_of(self, turn_id: str) -> int:
        """How many candidates a turn has."""
        facts = map(facts_of, self.entries)
        return sum(1 for fact in facts if fact.kind == "candidate" and fact.turn_id == turn_id)

    # Size (agent-engine 17b)

    @property
    def window(self) -> Window | None:
        """The context window that the newest answer with one told."""
        return self._window

    def estimate(self) -> float:
        """The tokens of the conversation: what a model counted last, and what came after it."""
        for entry in self.entries[self._counted :]:
            self._tokens += tokens_of(entry)
        self._counted = len(self.entries)
        return (self._anchor or 0) + self._tokens
