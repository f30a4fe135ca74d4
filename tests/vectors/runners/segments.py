"""Whole segments of agents and flows: what is asked, how it ends, what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from tests.vectors.case import Case, judge
from tests.vectors.files import records
from tests.vectors.segment_compare import fault_of, quotable
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
    for step in record["steps"]:
        manifest = step["input"].get("manifest", record["manifest"])
        is_flow = isinstance(manifest, dict) and manifest.get("kind") == "workflow"
        played = play("flow" if is_flow else "agent", manifest, step["input"], step.get("answers", {}))
        fault = fault_of(played, step["expect"], quoted=quotable(step) if is_flow else None)
        if fault is not None:
            return judge(record["name"], f"{step.get('title', 'step')}: {fault}")
    return Case(record["name"], "passed")
