"""What a search through a workspace costs beside ripgrep and GNU grep by hand.

The tool `grep` searches a tree for a word of few files, for one of none and for two letters of nearly every
line (the tool ends its search after 201 lines). On bubblewrap it does so with ripgrep's help and without; by
hand the programs run on the same tree outside, and all they print is read.

Figures, in milliseconds at the median, for each pattern P (rare, none, frequent):
  bwrap_rg_ms_P, bwrap_ms_P, emulated_ms_P   the tool with ripgrep, without, and in the emulated shell
Ratios:
  bwrap_over_rg_P     with ripgrep, to `rg --sort path`; the budget is 2.5
  bwrap_over_grep_P   without, to `grep -rnE`; the budget is 1.3
  bwrap_over_cut_P    without, to `grep -rnE | head -n 201`, whose lines are in no order
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path

from bench.environment import run_on_uvloop
from bench.result import BenchResult
from bench.sandbox_stage import BWRAP, EMULATED, OpenWorkspace, by_hand, open_workspace
from bench.trees import NEEDLE, plant_tree
from bench.turns import Variant, p50, take_turns
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.search.program import GrepProgram

PATTERNS = {"rare": NEEDLE, "none": "qwzx", "frequent": "ab"}
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
LINES = 201
BOUND_S = 1800.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--files", type=int, default=50_000, help="files (default %(default)s)")
    parser.add_argument("--mb", type=int, default=500, help="their size together (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="searches per way (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    return run_on_uvloop(lambda: _measure(flags.files, flags.mb * 10**6, flags.rounds))


async def _measure(files: int, total_bytes: int, rounds: int) -> BenchResult:
    figures: dict[str, float] = {}
    baseline: dict[str, float] = {}
    ratio: dict[str, float] = {}
    async with asyncio.timeout(BOUND_S):
        async with open_workspace(BWRAP) as workspace:
            plant_tree(workspace.folder, files, total_bytes)
            for name, pattern in PATTERNS.items():
                samples = await take_turns(_ways(workspace, pattern), rounds, 1)
                took = {way: p50(samples[way]) for way in samples}
                figures[f"bwrap_rg_ms_{name}"] = took["with_rg"]
                figures[f"bwrap_ms_{name}"] = took["without"]
                baseline |= {f"{way}_ms_{name}": took[way] for way in ("rg", "grep", "cut")}
                ratio[f"bwrap_over_rg_{name}"] = took["with_rg"] / took["rg"]
                ratio[f"bwrap_over_grep_{name}"] = took["without"] / took["grep"]
                ratio[f"bwrap_over_cut_{name}"] = took["without"] / took["cut"]
        async with open_workspace(EMULATED) as workspace:
            plant_tree(workspace.folder, files, total_bytes)
            for name, pattern in PATTERNS.items():
                figures[f"emulated_ms_{name}"] = await _emulated(workspace, pattern)
    return BenchResult("grep", figures, baseline, ratio)


def _ways(workspace: OpenWorkspace, pattern: str) -> Mapping[str, Variant]:
    return {
        "with_rg": _tool(workspace, pattern, ripgrep=True),
        "without": _tool(workspace, pattern, ripgrep=False),
        "rg": _hand(f"rg --sort path -n -e {pattern} .", workspace.folder),
        "grep": _hand(f"grep -rnE -e {pattern} -- .", workspace.folder),
        "cut": _hand(f"grep -rnE -e {pattern} -- . | head -n {LINES}", workspace.folder),
    }


def _tool(workspace: OpenWorkspace, pattern: str, *, ripgrep: bool) -> Variant:
    backend = workspace.backend
    assert isinstance(backend, BwrapBackend)
    found = backend.grep_program
    assert found.ripgrep, "ripgrep is not installed"
    program = GrepProgram(found.version, ripgrep)

    async def search() -> None:
        backend.grep_program = program
        await workspace.tool("grep", {"pattern": pattern})
        backend.grep_program = found

    return search


def _hand(command: str, folder: Path) -> Variant:
    async def search() -> None:
        by_hand(["/bin/sh", "-c", command], cwd=folder, env=ENVIRONMENT)

    return search


async def _emulated(workspace: OpenWorkspace, pattern: str) -> float:
    async def search() -> None:
        await workspace.tool("grep", {"pattern": pattern})

    return p50((await take_turns({"tool": search}, 1, 0))["tool"])
