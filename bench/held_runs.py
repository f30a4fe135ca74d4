"""What runs cost in a gateway while they wait for an Action.

Many sessions of one agent are brought to a tool call that the agent's Action endpoint (in this process)
accepts and does not answer, so that the gateway holds their runs. Its memory then is compared with what it
had when it was connected and idle. The other processes of the stack are real too.

Figures: `idle_mib`, `held_mib`, `above_idle_mib`, `kib_per_run`, `seconds` until all were held.
Ratio: `held_over_idle`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from aiohttp import web

from bench.engine_player import MANIFEST, asks
from bench.environment import run_on_uvloop, stack_plan
from bench.process_costs import cost_of
from bench.result import BenchResult
from cli.core_client import CoreClient
from cli.running_stack import running_stack
from cli.stack import GATEWAY, StackPlan

AGENT: Final = "bench"
HOLD_MS: Final = 600_000
BOUND_S: Final = 120.0
_AT_ONCE: Final = 20
_POLL_S: Final = 0.2
_SETTLE_S: Final = 1.0
"""After the last run is held, so that what its start needed is given back."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--sessions", type=int, default=1000, help="held runs (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    answers: list[dict[str, Any]] = [{"step": 0, "answer": asks("call-1")}, {"answer": "done"}]
    environ = {"WHIPPLETREE_CORE_DB": ":memory:", "WHIPPLETREE_CORE_HOLD_MS": str(HOLD_MS)}
    with stack_plan(answers, environ=environ) as plan:
        idle, held, seconds = run_on_uvloop(lambda: _hold(plan, flags.sessions))
    figures = {
        "sessions": float(flags.sessions),
        "held_mib": held,
        "above_idle_mib": held - idle,
        "kib_per_run": (held - idle) * 1024 / flags.sessions,
        "seconds": seconds,
    }
    return BenchResult("held_runs", figures, {"idle_mib": idle}, {"held_over_idle": held / idle})


async def _hold(plan: StackPlan, sessions: int) -> tuple[float, float, float]:
    """Idle and held memory in MiB, and the seconds between."""
    async with _action_endpoint() as url, running_stack(plan, lambda name, line: None) as stack:
        await stack.ready()
        gateway = stack.supervisor.pid(GATEWAY)
        assert gateway is not None
        await asyncio.sleep(_SETTLE_S)
        idle = cost_of(gateway).resident_mib
        began = time.perf_counter()
        async with asyncio.timeout(BOUND_S):
            await _start(plan, sessions, url)
            await _until_held(plan, sessions)
        seconds = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_S)
        assert stack.supervisor.pid(GATEWAY) == gateway
        return idle, cost_of(gateway).resident_mib, seconds


async def _start(plan: StackPlan, sessions: int, url: str) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)
    core_url = plan.core_url()
    async with CoreClient(core_url) as core, aiohttp.ClientSession() as http:
        agent = {"manifest": {**MANIFEST, "id": AGENT}, "actions": {"url": url}}
        async with http.put(f"{core_url}/v1/agents/{AGENT}", json=agent) as answer:
            assert answer.status == 201, await answer.text()

        async def begin() -> None:
            async with slots:
                await core.send_message(await core.create_session(AGENT), "look it up")

        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(begin())


async def _until_held(plan: StackPlan, sessions: int) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{plan.health_url()}/fleet") as answer:
                runs: list[dict[str, Any]] = (await answer.json())["runs"]
            phases = Counter(phase for run in runs for phase in run["effects"].values())
            if phases["holding"] == sessions:
                return
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _action_endpoint() -> AsyncIterator[str]:
    """The URL of an endpoint that accepts every Action and never brings its outcome."""

    async def accept(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(status=202)

    runner = web.ServerRunner(web.Server(accept))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/actions"
    finally:
        await runner.cleanup()
