"""Variants of agent manifests: what a loop of a flow may make of its agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.engine.flow.variants import is_variant
from tests.vectors.case import Case, judge
from tests.vectors.files import records

KINDS = ("variants",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for _, record in records(path):
        found = is_variant(record["candidate"], record["pinned"])
        yield judge(record["name"], None if found is record["variant"] else f"{found}")
