"""Transcript entries as text, and the edits between two transcripts (harness-api 5.8).

An entry lives as its compact JSON text, which is a quarter of the memory of its objects, and is parsed
again when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol import jsjson
from protocol.jsjson import JsonValue, RawJson
from protocol.utf16 import utf16_length

CHUNK_UNITS: Final = 262_144
"""Most UTF-16 code units of entries in one update, unless a single entry is larger (256 KiB)."""


class FoldError(ValueError):
    """An update doesn't fit the transcript it is applied to."""


class Entry:
    """One transcript entry; never changed once made, so that transcripts can share it.

    `text` is its compact JSON with members in their own order, `size` that text's length in UTF-16 code
    units, `plain` says whether orjson may write its value (jsjson.Parsed). `facts` belongs to the engine:
    what it computed from the entry and wants to keep. Two entries are equal when their texts are.
    """

    __slots__ = ("facts", "plain", "size", "text")

    def __init__(self, text: str, *, plain: bool = False) -> None:
        self.text: Final = text
        self.size: Final = utf16_length(text)
        self.plain: Final = plain
        self.facts: object | None = None

    @classmethod
    def from_value(cls, value: Any, plain: bool = False) -> Entry:
        """The entry of a value; `plain` as for `jsjson.dumps`."""
        return cls(jsjson.dumps(value, plain=plain), plain=plain)

    def value(self) -> JsonValue:
        """The entry's value, parsed anew: the caller owns it."""
        return jsjson.loads(self.text)

    def raw(self) -> RawJson:
        """The entry as a member of a larger document."""
        return RawJson(self.text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Entry) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Entry({self.size} units)"


@dataclass(frozen=True, slots=True)
class Update:
    """One edit: keep so many entries, append these, and the transcript has that length."""

    keep: int
    entries: tuple[Entry, ...]
    length: int

    def document(self) -> dict[str, Any]:
        """The edit as it crosses in a turn's output, entries as raw text."""
        return {"keep": self.keep, "entries": [entry.raw() for entry in self.entries], "length": self.length}


def entries_of(values: Sequence[Any], *, plain: bool = False) -> list[Entry]:
    """The entries of a transcript's values."""
    return [Entry.from_value(value, plain) for value in values]


def list_size(entries: Sequence[Entry]) -> int:
    """The length, in UTF-16 code units, of the JSON array of the entries."""
    return sum(entry.size for entry in entries) + max(len(entries) - 1, 0) + 2


def common_prefix(before: Sequence[Entry], after: Sequence[Entry]) -> int:
    """How many entries the two transcripts share at their start."""
    count = min(len(before), len(after))
    # Nearly always one is the other with more at its end, which a comparison of lists finds out at once.
    if list(before[:count]) == list(after[:count]):
        return count
    count = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and old.text != new.text:
            break
        count += 1
    return count


def updates(before: Sequence[Entry], after: Sequence[Entry], chunk_units: int = CHUNK_UNITS) -> list[Update]:
    """The edits from `before` to `after`, none when they are equal.

    Entries are packed in order into chunks of at most `chunk_units`; one that is larger is a chunk alone.
    """
    keep = common_prefix(before, after)
    if keep == len(after):
        return [] if keep == len(before) else [Update(keep, (), keep)]
    edits: list[Update] = []
    base = keep
    chunk: list[Entry] = []
    chunk_size = 0
    for entry in after[keep:]:
        if chunk and chunk_size + entry.size > chunk_units:
            edits.append(Update(base, tuple(chunk), base + len(chunk)))
            base += len(chunk)
            chunk, chunk_size = [], 0
        chunk.append(entry)
        chunk_size += entry.size
    edits.append(Update(base, tuple(chunk), base + len(chunk)))
    return edits


def fold(entries: Sequence[Entry], update: Update) -> list[Entry]:
    """The transcript after the edit. Raises FoldError when it keeps too many or its length is another."""
    if not 0 <= update.keep <= len(entries):
        raise FoldError(f"an edit keeps {update.keep} of {len(entries)} entries")
    folded = [*entries[: update.keep], *update.entries]
    if len(folded) != update.length:
        raise FoldError(f"an edit leads to {len(folded)} entries and says {update.length}")
    return folded
