"""What a page of a very large file costs: the first one, which counts the file's lines, and the next.

A sandbox-manager process reads; by hand one buffered pass of this process counts the line ends.

Figures:
  page_ms        the first page of the file, from its middle, at the median; the file is touched before each
  next_page_ms   another page of the same file; the budget is 20
  grown_mib      by how much the manager's largest size grew with all that; it doesn't depend on the file's
Ratio:
  page_over_pass the first page to the pass; the budget is 1.5
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path

from bench.environment import run_on_uvloop
from bench.process_costs import cost_of
from bench.result import BenchResult
from bench.sandbox_stage import BWRAP, ServedSandbox, served_sandbox
from bench.turns import Samples, p50

LINE = 100
LIMIT = 1000
NAME = "large.txt"
BUFFER = 1024 * 1024
SETTLED_S = 0.1
"""A file that was changed a moment ago is not remembered."""
BOUND_S = 1800.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--mb", type=int, default=1000, help="size of the file (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="pages per way (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    return run_on_uvloop(lambda: _measure(flags.mb * 10**6, flags.rounds))


async def _measure(size: int, rounds: int) -> BenchResult:
    lines = size // LINE
    async with asyncio.timeout(BOUND_S), served_sandbox(BWRAP) as served:
        await served.call("write", {"path": "small.txt", "content": "one\n"})
        await served.call("read", {"path": "small.txt"})
        file = served.folder() / "workspace" / NAME
        _write(file, lines)
        before = cost_of(served.pid).peak_mib
        samples = await _measure_in_turn(served, file, lines, rounds)
        grown = cost_of(served.pid).peak_mib - before
    took = {way: p50(samples[way]) for way in samples}
    return BenchResult(
        "read",
        {"page_ms": took["page"], "next_page_ms": took["next"], "grown_mib": grown},
        {"pass_ms": took["pass"]},
        {"page_over_pass": took["page"] / took["pass"]},
    )


async def _measure_in_turn(served: ServedSandbox, file: Path, lines: int, rounds: int) -> Samples:
    samples: Samples = {"page": [], "next": [], "pass": []}

    async def timed(way: str, work: Awaitable[object]) -> None:
        began = time.perf_counter()
        await work
        samples[way].append((time.perf_counter() - began) * 1000)

    for number in range(rounds):
        # The page is a first one each time.
        os.utime(file)
        await asyncio.sleep(SETTLED_S)
        await timed("page", _read(served, lines // 2))
        await timed("next", _read(served, 1 + number * lines // rounds))
        await timed("pass", _pass(file, lines))
    return samples


async def _read(served: ServedSandbox, offset: int) -> None:
    shown = await served.call("read", {"path": NAME, "offset": offset, "limit": LIMIT})
    assert shown.lstrip().startswith(f"{offset}\t"), shown[:100]


def _write(file: Path, lines: int) -> None:
    block = (b"x" * (LINE - 1) + b"\n") * 10_000
    with open(file, "wb") as written:
        for left in range(lines, 0, -10_000):
            written.write(block[: min(left, 10_000) * LINE])


async def _pass(file: Path, lines: int) -> None:
    assert _count(file) == lines


def _count(file: Path) -> int:
    found = 0
    with open(file, "rb", buffering=0) as opened:
        while data := opened.read(BUFFER):
            found += data.count(b"\n")
    return found
