"""Transcripts as edits in the log, and the folded ones that are kept in memory.

Every `transcript.updated` event names the position it applies to, so that the transcript at a cursor is the
chain of edits that leads there; edits of a turn that failed hang on no chain that is followed again.
Settling a run never needs the entries: the length is enough to check that an edit folds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from protocol import jsjson
from protocol.transcript import Entry
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.settle import Edit

MAX_CACHED_UNITS: Final = 128 * 1024 * 1024
"""UTF-16 code units of entries that are kept folded."""


@dataclass(slots=True)
class _Folded:
    cursor: int
    entries: list[Entry]
    size: int


class Transcripts:
    """Folded transcripts by session, the least recently used out first."""

    def __init__(self, store: Store, max_units: int = MAX_CACHED_UNITS) -> None:
        self._store = store
        self._max_units = max_units
        self._kept: OrderedDict[str, _Folded] = OrderedDict()
        self._units = 0
        self.folds = 0
        """How often a transcript was folded from the log."""

    async def at(self, session_id: str, cursor: int) -> list[Entry]:
        """The entries at a cursor; not to be changed, and good until the next await only."""
        if cursor < 0:
            return []
        kept = self._kept.get(session_id)
        if kept is not None and kept.cursor == cursor:
            self._kept.move_to_end(session_id)
            return kept.entries
        self.folds += 1
        entries = await self._store.read(partial(fold_log, session_id=session_id, cursor=cursor))
        self._keep(session_id, cursor, entries)
        return entries

    def advance(self, session_id: str, before: int, after: int, edits: Iterable[Edit]) -> None:
        """Follows edits that were committed; costs what is new."""
        if before == after:
            return
        kept = self._kept.get(session_id)
        if before < 0:
            entries: list[Entry] = []
        elif kept is not None and kept.cursor == before:
            entries = kept.entries
        else:
            return
        removed = 0
        added = 0
        for edit in edits:
            removed += sum(entry.size for entry in entries[edit.keep :])
            del entries[edit.keep :]
            entries.extend(edit.entries)
            added += sum(entry.size for entry in edit.entries)
        if kept is None or kept.entries is not entries:
            self._keep(session_id, after, entries)
            return
        kept.cursor = after
        kept.size += added - removed
        self._units += added - removed
        self._kept.move_to_end(session_id)
        self._evict()

    def _keep(self, session_id: str, cursor: int, entries: list[Entry]) -> None:
        old = self._kept.pop(session_id, None)
        if old is not None:
            self._units -= old.size
        size = sum(entry.size for entry in entries)
        if size > self._max_units:
            return
        self._kept[session_id] = _Folded(cursor, entries, size)
        self._units += size
        self._evict()

    def _evict(self) -> None:
        while self._units > self._max_units:
            _, folded = self._kept.popitem(last=False)
            self._units -= folded.size


def fold_log(tx: Tx, session_id: str, cursor: int) -> list[Entry]:
    """The transcript at a cursor, from the edits in the log."""
    edits: list[Any] = []
    while cursor >= 0:
        row = tx.one(
            "SELECT payload, base FROM events WHERE session_id = ? AND seq = ? AND type = 'transcript.updated'",
            (session_id, cursor),
        )
        if row is None:
            raise LookupError(f"event {cursor} of session {session_id} is not an edit")
        edit: Any = jsjson.parse(row[0])
        edits.append(edit)
        if edit.value["keep"] == 0:
            break
        cursor = row[1]
    entries: list[Entry] = []
    for edit in reversed(edits):
        del entries[edit.value["keep"] :]
        entries.extend(Entry.from_value(value, edit.plain) for value in edit.value["entries"])
    return entries
