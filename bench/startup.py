"""How long each process takes from its start until it serves, and what memory it holds then.

Each is started alone, one after the other, and stopped again: the development core until its HTTP API answers,
each service until it says that it listens, the gateway (with everything else serving) until the core has its
first lease. `up` is all of them at once. The baseline is a bare Python that imports nothing.

Figures: `NAME_s` and `NAME_mib` (resident, without children) for each process, `up_s`, `help_s` for
`whippletree --help`.
Ratios: `NAME_over_python`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import aiohttp

from bench.environment import run_on_uvloop, stack_plan
from bench.process_costs import cost_of
from bench.processes import Child, child
from bench.result import BenchResult
from cli.running_stack import running_stack
from cli.stack import CORE, GATEWAY, MCP, MODEL, SANDBOX, ProcessSpec, StackPlan, process_specs

SERVING: Final = {CORE: "dev_core_ready", MODEL: "grpc_serving", MCP: "grpc_serving", SANDBOX: "grpc_serving"}
BOUND_S: Final = 30.0
_POLL_S: Final = 0.005


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--times", type=int, default=5, help="starts of each process (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures; medians of all starts."""
    with stack_plan([{"answer": "done"}]) as plan:
        found = run_on_uvloop(lambda: _measure(plan, flags.times))
    python_s = statistics.median(_whole([sys.executable, "-c", ""]) for _ in range(flags.times))
    figures = {name: statistics.median(values) for name, values in found.items()}
    figures["help_s"] = statistics.median(
        _whole([sys.executable, "-m", "cli.main", "--help"]) for _ in range(flags.times)
    )
    ratio = {
        f"{name.removesuffix('_s')}_over_python": value / python_s
        for name, value in figures.items()
        if name.endswith("_s")
    }
    return BenchResult("startup", figures, {"python_s": python_s}, ratio)


async def _measure(plan: StackPlan, times: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    specs = {spec.name: spec for spec in process_specs(replace(plan, gate=None))}
    for _ in range(times):
        for name in (CORE, MODEL, MCP, SANDBOX):
            async with _started(specs[name]) as (process, seconds):
                _note(found, name, seconds, process.pid)
        async with contextlib.AsyncExitStack() as others:
            for name in (CORE, MODEL, MCP, SANDBOX):
                await others.enter_async_context(_started(specs[name]))
            began = time.perf_counter()
            async with child(GATEWAY, specs[GATEWAY].argv, specs[GATEWAY].environ) as process:
                await _leased(plan)
                _note(found, GATEWAY, time.perf_counter() - began, process.pid)
        began = time.perf_counter()
        async with running_stack(plan, lambda name, line: None) as stack:
            await stack.ready()
            found.setdefault("up_s", []).append(time.perf_counter() - began)
    return found


@contextlib.asynccontextmanager
async def _started(spec: ProcessSpec) -> AsyncIterator[tuple[Child, float]]:
    began = time.perf_counter()
    async with child(spec.name, spec.argv, spec.environ) as process:
        await process.ready(SERVING[spec.name])
        yield process, time.perf_counter() - began


async def _leased(plan: StackPlan) -> None:
    """Returns when a gateway waits at the core for work."""
    async with asyncio.timeout(BOUND_S), aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{plan.core_url()}/health") as answer:
                if (await answer.json())["harness"]["waitingLeases"]:
                    return
            await asyncio.sleep(_POLL_S)


def _note(found: dict[str, list[float]], name: str, seconds: float, pid: int) -> None:
    found.setdefault(f"{name}_s", []).append(seconds)
    found.setdefault(f"{name}_mib", []).append(cost_of(pid).resident_mib)


def _whole(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
