"""Variants of agent manifests, which only the loops of flows ask about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.case import Case
from tests.vectors.files import records

KINDS = ("variants",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for _, record in records(path):
        yield Case(record["name"], "not built", "flows")
