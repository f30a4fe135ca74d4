"""Runs the tests in stages and prints what share of its time each one took (`python -m tests.stages`)."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, its share of the time in seconds, and what pytest is told to run."""

    name: str
    seconds: int
    arguments: tuple[str, ...]


STAGES = (
    Stage("unit", 480, ("-m", "not system and not faults and not engine and not browser")),
    Stage("system", 480, ("-m", "system and not faults")),
    Stage("faults", 480, ("-m", "faults")),
    Stage("engine", 360, ("-m", "engine")),
    Stage("browser", 240, ("-m", "browser")),
)
"""Together with the installation they stay under 40 minutes."""


def run(stage: Stage) -> tuple[int, float]:
    """Runs one stage; its exit code and its seconds."""
    print(f"\n=== {stage.name} ===", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *stage.arguments]
    code = subprocess.run(command, check=False).returncode
    return code, time.monotonic() - began


def main(names: list[str]) -> int:
    """Runs the named stages, or all; 0 when every one passed."""
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        print(
            f"There is no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in STAGES)}."
        )
        return 2
    rows = []
    failed = False
    for stage in STAGES:
        if names and stage.name not in names:
            continue
        code, seconds = run(stage)
        failed = failed or code != 0
        rows.append((stage, code, seconds))
    print("\nstage      seconds  of its share")
    for stage, code, seconds in rows:
        verdict = "" if code == 0 else f"  FAILED (exit {code})"
        print(
            f"{stage.name:<10} {seconds:7.1f}  {seconds / stage.seconds:6.0%} of {stage.seconds} s{verdict}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
