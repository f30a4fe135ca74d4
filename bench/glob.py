"""What the tool `glob` costs beside `find` by hand.

Figures, in milliseconds at the median, for each driver:
  bwrap_ms, emulated_ms   the tool with a pattern that a quarter of the names fit
Ratios:
  bwrap_over_find         to `find . -type f` over the whole tree; the budget is 3
  emulated_over_find      the same of the emulated driver
  *_over_cut              to the same `find` cut after 20,000 names, where the tool ends
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.environment import run_on_uvloop
from bench.result import BenchResult
from bench.sandbox_stage import DRIVERS, OpenWorkspace, by_hand, open_workspace
from bench.trees import plant_tree
from bench.turns import Variant, p50, take_turns
from services.sandbox_manager.tools.glob import FILES_SEARCHED

PATTERN = "**/*1.{py,js}"
BOUND_S = 1800.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--files", type=int, default=100_000, help="files (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="searches per way (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    return run_on_uvloop(lambda: _measure(flags.files, flags.rounds))


async def _measure(files: int, rounds: int) -> BenchResult:
    figures: dict[str, float] = {}
    baseline: dict[str, float] = {}
    ratio: dict[str, float] = {}
    async with asyncio.timeout(BOUND_S):
        for driver in DRIVERS:
            async with open_workspace(driver) as workspace:
                plant_tree(workspace.folder, files, files)
                find = "find . -type f -not -path '*/.git/*'"
                variants = {
                    "tool": _tool(workspace),
                    "find": _hand(find, workspace.folder),
                    "cut": _hand(f"{find} | head -n {FILES_SEARCHED}", workspace.folder),
                }
                samples = await take_turns(variants, rounds, 1)
            took = {way: p50(samples[way]) for way in samples}
            figures[f"{driver}_ms"] = took["tool"]
            baseline |= {f"find_ms_{driver}": took["find"], f"cut_ms_{driver}": took["cut"]}
            ratio[f"{driver}_over_find"] = took["tool"] / took["find"]
            ratio[f"{driver}_over_cut"] = took["tool"] / took["cut"]
    return BenchResult("glob", figures, baseline, ratio)


def _tool(workspace: OpenWorkspace) -> Variant:
    async def search() -> None:
        assert (await workspace.tool("glob", {"pattern": PATTERN})).count("\n") > 0

    return search


def _hand(command: str, folder: Path) -> Variant:
    async def search() -> None:
        by_hand(["/bin/sh", "-c", command], cwd=folder)

    return search
