"""The tables of docs/architecture.md are the tables of the code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from gateway.executors.timings import ExecutorTimings
from gateway.runs.phases import EFFECT_STEPS, RUN_STEPS
from tests.docs.pages import DOCS, ROOT, Page, code_of

PAGE = Page(DOCS / "architecture.md")


@pytest.mark.parametrize(
    ("title", "steps"), [("**Run**", RUN_STEPS), ("**Effect, in the gateway**", EFFECT_STEPS)]
)
def test_states_and_their_successors_are_those_of_the_code(
    title: str, steps: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    start = next(number for number, line in PAGE.prose if line == title)
    rows = [row for row in PAGE.rows() if row.line > start and row.header[:2] == ("state", "may become")]
    shown = {row.cells[0]: set(row.cells[1].split(", ")) for row in rows[: len(steps)]}
    assert shown == {str(state): set(map(str, after)) or {"–"} for state, after in steps.items()}


def test_the_pauses_between_attempts_are_those_of_the_code() -> None:
    pauses = ", ".join(f"{pause:g}" for pause in ExecutorTimings().resend_pauses[:-1])
    assert f"{pauses}, then {ExecutorTimings().resend_pauses[-1]:g} s" in " ".join(PAGE.lines)


def test_every_folder_and_file_of_the_map_exists() -> None:
    named = {
        path for row in PAGE.rows() if row.section == "Where things are" for path in code_of(row.cells[0])
    }
    assert len(named) > 15
    missing = [path for path in named if not any(_found(path))]
    assert missing == []


def _found(path: str) -> list[Path]:
    # A row names its first entry in full, the others beside it.
    return [
        found for found in (ROOT / path, ROOT / "gateway" / path, ROOT / "services" / path) if found.exists()
    ]
