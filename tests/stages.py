"""Runs the tests in stages and prints what share of its time each one took (`python -m tests.stages`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_LINE = 300


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, its share of the time in seconds, and what pytest is told to run."""

    name: str
    seconds: int
    arguments: tuple[str, ...]
    by_name_only: bool = False
    """It runs when it is asked for, not with all the others."""


STAGES = (
    Stage(
        "unit",
        480,
        (
            "-m",
            "not system and not faults and not engine and not browser and not long",
            "-n",
            "2",
            "--dist",
            "loadfile",
        ),
    ),
    Stage("system", 480, ("-m", "system and not faults")),
    Stage("faults", 480, ("-m", "faults")),
    Stage("engine", 360, ("-m", "engine")),
    Stage("browser", 240, ("-m", "browser")),
    Stage("long", 600, ("-m", "long"), by_name_only=True),
)
"""Together with the installation, those that are not by name only stay under 40 minutes."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a stage ended: pytest's exit code, seconds, and a line for each test that failed."""

    stage: Stage
    code: int
    seconds: float
    failures: tuple[str, ...]


def run(stage: Stage) -> Ran:
    """Runs one stage."""
    print(f"\n=== {stage.name} ===", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *stage.arguments]
        code = subprocess.run(command, check=False).returncode
        failures = tuple(failed(report)) if report.exists() else ()
    return Ran(stage, code, time.monotonic() - began, failures)


def failed(report: Path) -> Iterator[str]:
    """The tests that failed by a report of pytest, each in one line with the first line of its reason."""
    for case in ElementTree.parse(report).iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            reason = (problem.get("message") or problem.tag).strip().splitlines() or [problem.tag]
            yield f"{case.get('classname')}::{case.get('name')}: {reason[0]}"[:_LINE]


def main(names: list[str]) -> int:
    """Runs the named stages, or all; 0 when every one passed."""
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        print(
            f"There is no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in STAGES)}."
        )
        return 2
    chosen = [stage for stage in STAGES if (stage.name in names if names else not stage.by_name_only)]
    rows = [run(stage) for stage in chosen]
    for row in rows:
        for line in row.failures:
            print(f"\nfailed in {row.stage.name}: {line}")
    print("\nstage      seconds  of its share")
    for row in rows:
        verdict = "" if row.code == 0 else f"  FAILED (exit {row.code})"
        share = row.seconds / row.stage.seconds
        print(f"{row.stage.name:<10} {row.seconds:7.1f}  {share:6.0%} of {row.stage.seconds} s{verdict}")
    return 1 if any(row.code for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
