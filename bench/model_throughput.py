"""How many model calls a second one model-executor gets through, with 32 callers and calls of 1 KiB.

A provider that answers at once stands behind all of these, which are measured one after the other, in rounds:

* `gate` and `direct`: one model-executor's process on that route;
* the bare SDK with its own streaming loop, in this process (baseline of `direct`, aim 0.8 of it);
* Portkey's gateway from npm, not streamed (baseline of `gate`, aim 1.2 of it). It is taken from `--portkey`, a
  folder with `node_modules`, or fetched with npm; without either its figures are left out, with a word.

Figures: calls per second, and CPU milliseconds of the measured process per call, which depends less on what
else the machine does. Ratios over the baselines of both.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.environment import run_on_uvloop, stack_plan
from bench.model_overhead import sdk_client, stream_once
from bench.model_route import call_of
from bench.model_stage import DIRECT, GATE, Provider, start_executor, start_provider
from bench.process_costs import cost_of
from bench.processes import child
from bench.result import BenchResult
from cli.ports import HOST
from cli.stack import StackPlan

PORTKEY: Final = "@portkey-ai/gateway"
PORTKEY_VERSION: Final = "1.15.2"
SIZE: Final = 1024
CALLERS: Final = 32
ROUNDS: Final = 5
NPM_S: Final = 120.0
BOUND_S: Final = 600.0

Call = Callable[[], Awaitable[object]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--calls", type=int, default=2000, help="calls per round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (default %(default)s)")
    parser.add_argument(
        "--portkey", help="a folder whose node_modules has Portkey's gateway; 'none' leaves it out"
    )


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with stack_plan([]) as plan, tempfile.TemporaryDirectory(prefix="whippletree-portkey-") as folder:
        server = _portkey(flags.portkey, Path(folder))
        return run_on_uvloop(lambda: _measure(plan, server, flags.calls, flags.rounds))


async def _measure(plan: StackPlan, server: Path | None, calls: int, rounds: int) -> BenchResult:
    async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
        provider = await start_provider(stack, SIZE)
        text = call_of(SIZE).decode()
        ways: dict[str, tuple[int | None, Call]] = {}
        for route in (GATE, DIRECT):
            executor, _ = await start_executor(stack, plan, route, provider)
            ways[route] = (executor.pid, lambda executor=executor: executor.call(text))  # type: ignore[misc]
        sdk = await stack.enter_async_context(sdk_client(provider.url))
        ways["sdk"] = (None, lambda: stream_once(sdk, text))
        if server is not None:
            ways["portkey"] = await stack.enter_async_context(_portkey_way(server, provider, text))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, (pid, call) in ways.items():
                rate, cpu_ms = await _round(pid, call, calls if number else max(CALLERS, calls // 10))
                if number:
                    rates[name].append(rate)
                    costs[name].append(cpu_ms)
    return _result(rates, costs)


async def _round(pid: int | None, call: Call, calls: int) -> tuple[float, float]:
    """Calls per second, and CPU milliseconds of the process (this one for None) per call."""
    left = calls

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    before, began = _cpu_s(pid), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())
    seconds = time.perf_counter() - began
    return calls / seconds, (_cpu_s(pid) - before) / calls * 1000


def _cpu_s(pid: int | None) -> float:
    return time.process_time() if pid is None else cost_of(pid).cpu_s


def _result(rates: dict[str, list[float]], costs: dict[str, list[float]]) -> BenchResult:
    """Of each way the best round: what disturbs a round only makes it slower."""
    rate = {name: max(found) for name, found in rates.items()}
    cpu = {name: min(found) for name, found in costs.items()}
    figures: dict[str, float] = {}
    baseline: dict[str, float] = {}
    for name, best in rate.items():
        group = figures if name in (GATE, DIRECT) else baseline
        group[f"{name}_calls_per_s"] = best
        group[f"{name}_cpu_ms_per_call"] = cpu[name]
    ratio = {
        "direct_over_sdk": rate[DIRECT] / rate["sdk"],
        "direct_cpu_over_sdk": cpu[DIRECT] / cpu["sdk"],
    }
    if "portkey" in rate:
        ratio["gate_over_portkey"] = rate[GATE] / rate["portkey"]
        ratio["gate_cpu_over_portkey"] = cpu[GATE] / cpu["portkey"]
    return BenchResult("model_throughput", figures, baseline, ratio)


# Portkey


def _portkey(given: str | None, folder: Path) -> Path | None:
    """Its server's file, fetched into the folder when it isn't given; None, with a word, when it can't be had."""
    if given == "none":
        return None
    if shutil.which("node") is None or (given is None and shutil.which("npm") is None):
        _say_without("node and npm are not installed")
        return None
    if given is None:
        command = [
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(folder),
        ]
        try:
            subprocess.run(
                [*command, f"{PORTKEY}@{PORTKEY_VERSION}"],
                check=True,
                timeout=NPM_S,
                stdout=subprocess.DEVNULL,
            )
        except (subprocess.SubprocessError, OSError) as error:
            _say_without(f"npm could not install it ({type(error).__name__})")
            return None
    server = Path(given or folder) / "node_modules" / PORTKEY / "build" / "start-server.js"
    if not server.is_file():
        _say_without(f"{server} is not there")
        return None
    return server


def _say_without(reason: str) -> None:
    print(f"Without Portkey's gateway: {reason}.", file=sys.stderr)


@asynccontextmanager
async def _portkey_way(server: Path, provider: Provider, text: str) -> AsyncIterator[tuple[int, Call]]:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = (shutil.which("node") or "node", str(server), f"--port={port}", "--headless")
    headers = {
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"{provider.url}/v1",
        "authorization": "Bearer bench",
    }
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}]}
    url = f"http://{HOST}:{port}/v1/chat/completions"
    async with (
        child("portkey", command, {"PATH": "/usr/bin:/bin"}) as started,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CALLERS)) as http,
    ):

        async def call() -> None:
            async with http.post(url, json=body, headers=headers) as answer:
                found = await answer.json()
                assert len(found["choices"][0]["message"]["content"]) == SIZE

        async with asyncio.timeout(30):
            while True:
                try:
                    await call()
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)
        yield started.pid, call
