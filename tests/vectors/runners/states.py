"""Recorded states changed in one place: refused as recorded, or run with every effect pending."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.case import Case, judge
from tests.vectors.files import records
from tests.vectors.segment_host import play

KINDS = ("states",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for _, record in records(path):
        yield judge(record["name"], _fault(record))


def _fault(record: dict[str, Any]) -> str | None:
    played = play("agent", record["manifest"], {"checkpoint": record["checkpoint"]}, {})
    if "thrown" in record:
        if played.refused is None:
            return f"not refused with {record['thrown']}"
        return None if played.refused.code == record["thrown"] else f"{played.refused.code}, {played.refused}"
    if played.refused is not None:
        return f"refused: {played.refused.code}: {played.refused}"
    assert played.result is not None
    asked = {effect.effect_id: effect.request_hash for effect, _ in played.asked}
    wanted = {effect["effectId"]: effect["requestHash"] for effect in record["effects"]}
    if (played.result.status, asked) != (record["status"], wanted):
        return f"{played.result.status} {asked}, not {record['status']} {wanted}"
    return None
