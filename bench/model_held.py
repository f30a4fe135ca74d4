"""What calls cost in a model-executor while a slow provider holds them, and how fast all of them are cancelled.

Many calls are brought to a provider that doesn't answer: 64 KiB each on the gate route, 4 KiB on the direct one.
After they were held for a while, the executor's memory is compared with what it had before; then all of them are
cancelled, and what is measured is the time until the provider has seen the last connection go.

Figures for each route (`gate_`, `direct_`): `held_mib` and `peak_mib` (aim: under 300 for 1,000 calls),
`kib_per_call`, `failed` (calls that ended by themselves: 0), `cancel_s` (aim: under 3). `make long` holds them to
these aims. On two cores at a load of 7 to 10, 1,000 calls held for 60 s:

    gate    261 MiB (peak 271), 204 KiB a call, none failed, cancelled in 1.1 s
    direct  169 MiB (peak 179),  81 KiB a call, none failed, cancelled in 2.3 s
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

import aiohttp

from bench.environment import run_on_uvloop, stack_plan
from bench.model_route import call_of
from bench.model_stage import (
    DIRECT,
    GATE,
    Executor,
    Provider,
    all_of,
    start_executor,
    start_provider,
)
from bench.process_costs import cost_of
from bench.result import BenchResult
from cli.stack import StackPlan

BYTES: Final = {GATE: 64 * 1024, DIRECT: 4 * 1024}
ANSWER_BYTES: Final = 1024
BOUND_S: Final = 180.0
_SETTLE_S: Final = 1.0
_POLL_S: Final = 0.02
_HOLD: Final = '"hold"'


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--calls", type=int, default=1000, help="calls at once (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long they are held (default %(default)s)"
    )


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with stack_plan([]) as plan:
        return run_on_uvloop(lambda: _measure(plan, flags.calls, flags.seconds))


async def _measure(plan: StackPlan, calls: int, seconds: float) -> BenchResult:
    figures: dict[str, float] = {"calls": float(calls), "seconds": seconds}
    baseline: dict[str, float] = {}
    for route in (GATE, DIRECT):
        async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S + 2 * seconds):
            provider = await start_provider(stack, ANSWER_BYTES)
            executor, _ = await start_executor(stack, plan, route, provider, path="/held/v1")
            http = await stack.enter_async_context(aiohttp.ClientSession())
            idle, found = await _hold(executor, provider, http, route, calls, seconds)
            figures |= {f"{route}_{name}": value for name, value in found.items()}
            baseline[f"{route}_idle_mib"] = idle
    return BenchResult("model_held", figures, baseline)


async def _hold(
    executor: Executor,
    provider: Provider,
    http: aiohttp.ClientSession,
    route: str,
    calls: int,
    seconds: float,
) -> tuple[float, dict[str, float]]:
    text = call_of(BYTES[route]).decode().replace('"exec_bench"', _HOLD)
    await _warm(executor, provider, http, text)
    await asyncio.sleep(_SETTLE_S)
    idle = cost_of(executor.pid).resident_mib
    running = [asyncio.ensure_future(_await(executor.start(text, number))) for number in range(calls)]
    await _until(http, provider, "held", calls)
    await asyncio.sleep(seconds)
    counts = await provider.counts(http)
    held = cost_of(executor.pid).resident_mib
    failed = calls - counts["held"]
    began = time.perf_counter()
    cancels = [executor.cancel(number) for number in range(calls)]
    await all_of(cancels)
    await _until(http, provider, "lost", calls - failed)
    took = time.perf_counter() - began
    await all_of(running)
    return idle, {
        "held_mib": held,
        "kib_per_call": (held - idle) * 1024 / calls,
        "failed": float(failed),
        "cancel_s": took,
        "peak_mib": cost_of(executor.pid).peak_mib,
    }


async def _await(call: object) -> object:
    return await call  # type: ignore[misc]


async def _warm(executor: Executor, provider: Provider, http: aiohttp.ClientSession, text: str) -> None:
    """One whole call, so that everything is loaded."""
    running = asyncio.ensure_future(_await(executor.start(text, -1)))
    await _until(http, provider, "held", 1)
    await provider.release(http)
    await running


async def _until(http: aiohttp.ClientSession, provider: Provider, name: str, count: int) -> None:
    """Waits until the provider has counted so many. The bound is the benchmark's."""
    while (await provider.counts(http))[name] < count:  # noqa: ASYNC110  (another process)
        await asyncio.sleep(_POLL_S)
