"""Transcripts kept between the runs of one connection, so that they are not read again (harness-api 5.8)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.transcript import Entry, Update, list_size

BUDGET_UNITS: Final = 268_435_456
"""All transcripts together, in UTF-16 code units of their JSON text (256 MiB)."""


@dataclass(frozen=True, slots=True)
class CachedTranscript:
    """A session's transcript at one position of its record."""

    cursor: int
    entries: Sequence[Entry]
    size: int


class TranscriptCache:
    """One transcript per session, least recently used out first."""

    def __init__(self, budget_units: int = BUDGET_UNITS) -> None:
        self._budget = budget_units
        self._total = 0
        self._cached: OrderedDict[str, CachedTranscript] = OrderedDict()

    @property
    def total_size(self) -> int:
        """What is kept, in UTF-16 code units; an estimate, as the sizes given to `put` are."""
        return self._total

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, session_id: str, cursor: int) -> CachedTranscript | None:
        """The transcript at exactly this cursor; a hit becomes the most recent."""
        cached = self._cached.get(session_id)
        if cached is None or cached.cursor != cursor:
            return None
        self._cached.move_to_end(session_id)
        return cached

    def put(self, session_id: str, cursor: int, entries: Sequence[Entry], size: int) -> None:
        """Keeps a transcript instead of the session's other one, unless it is larger than the whole budget."""
        self.drop(session_id)
        if size > self._budget:
            return
        self._cached[session_id] = CachedTranscript(cursor, entries, size)
        self._total += size
        while self._total > self._budget:
            _, oldest = self._cached.popitem(last=False)
            self._total -= oldest.size

    def drop(self, session_id: str) -> None:
        """Forgets the session's transcript."""
        cached = self._cached.pop(session_id, None)
        if cached is not None:
            self._total -= cached.size


def estimated_size(
    known: int | None, before: Sequence[Entry], after: Sequence[Entry], edits: Sequence[Update]
) -> int:
    """The size of `after` from the size of `before` where that is known, without looking at all of it."""
    if known is None:
        return list_size(after)
    if not edits:
        return known
    kept = math.floor(known * edits[0].keep / len(before) + 0.5) if before else 0
    return kept + sum(list_size(edit.entries) for edit in edits)
