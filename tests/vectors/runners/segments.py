"""Whole segments of agents and flows: what is asked, how it ends, what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from tests.vectors.case import Case, judge
from tests.vectors.files import records
from tests.vectors.not_built import case_needs_unbuilt
from tests.vectors.segment_compare import fault_of
from tests.vectors.segment_host import play

KINDS = ("segments", "flows", "agents", "compaction")


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file: a case fails as a whole at its first differing step."""
    if path.suffix == ".json":
        yield _case(jsjson.loads(path.read_bytes()))
        return
    for _, record in records(path):
        yield _case(record)


def _case(record: Any) -> Case:
    missing = case_needs_unbuilt(record)
    if missing is not None:
        return Case(record["name"], "not built", missing)
    for step in record["steps"]:
        manifest = step["input"].get("manifest", record["manifest"])
        played = play("agent", manifest, step["input"], step.get("answers", {}))
        fault = fault_of(played, step["expect"])
        if fault is not None:
            return judge(record["name"], f"{step.get('title', 'step')}: {fault}")
    return Case(record["name"], "passed")
