"""The edits between two transcripts, and that they lead from the one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from protocol.transcript import CHUNK_UNITS, entries_of, fold, updates
from tests.vectors.case import Case, judge
from tests.vectors.files import records

KINDS = ("transcript_updates",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for line, record in records(path):
        yield judge(f"{line} {record['name']}", _fault(record))


def _fault(record: dict[str, Any]) -> str | None:
    before, after = entries_of(record["before"]), entries_of(record["after"])
    edits = updates(before, after, record.get("chunkBytes", CHUNK_UNITS))
    got = jsjson.dumps([edit.document() for edit in edits])
    expected = jsjson.dumps(record["updates"])
    if jsjson.loads(got) != jsjson.loads(expected):
        return f"edits {got}, not {expected}"
    folded = before
    for edit in edits:
        folded = fold(folded, edit)
    return None if folded == after else "the edits lead elsewhere"
