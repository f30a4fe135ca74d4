"""Runs a benchmark as a person does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BOUND_S = 110


def run_bench(name: str, *flags: str, bound_s: float = BOUND_S) -> dict[str, Any]:
    """The printed object; stdout must have nothing else."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench", name, "--json", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=bound_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 1, ended.stdout
    result: dict[str, Any] = json.loads(lines[0])
    assert list(result) == ["name", "figures", "baseline", "ratio"]
    assert result["name"] == name
    for group in ("figures", "baseline", "ratio"):
        assert all(isinstance(value, int | float) for value in result[group].values())
    return result
