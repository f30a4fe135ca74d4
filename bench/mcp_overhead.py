"""A tool call through gateway client, gRPC and mcp-pool beside the same call by other people's means.

Three ways to one and the same echo server (a stdio server of the standard library, one process for each way),
call by call in turn:

  ours    the gateway's client, gRPC over the loopback, the mcp-pool's process, the server
  sdk     the official SDK's client in this process, the server
  proxy   the official SDK's client in this process, HTTP over the loopback, the process of `mcp-proxy`, the
          server; only where `mcp-proxy` is installed in an environment of its own (it wants an older SDK):
              python3 -m venv .venv/mcp-proxy && .venv/mcp-proxy/bin/pip install mcp-proxy

Figures, in milliseconds: `ours_ms_*`, `added_ms_*` (ours less sdk). Baselines: `sdk_ms_*`, `proxy_ms_*`.
Ratios: `ours_over_sdk_*`, `ours_over_proxy_*`. `*_cpu_ms` is the processor's time for a call, in this process
and the one between (the server's apart): on a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from bench import mcp_route
from bench.environment import run_on_uvloop
from bench.pool_process import pool_client, pool_process
from bench.process_costs import cost_of
from bench.processes import NotReady
from bench.result import BenchResult
from bench.run_context import HASH, run_context, tool_effect
from bench.turns import Variant, p50, p99, take_turns
from gateway.executors.contract import AbortSignal
from gateway.executors.run_servers import servers_for
from services.common.child_start import death_signal_prefix

PROXY: Final = Path(__file__).parents[1] / ".venv" / "mcp-proxy" / "bin" / "mcp-proxy"
BOUND_S: Final = 300.0
READY_S: Final = 60.0
WARM_UP: Final = 50
_SERVES: Final = re.compile(rb"Uvicorn running on (http://[0-9.:]+)")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--calls", type=int, default=1000, help="calls of each way (default %(default)s)")
    parser.add_argument("--bytes", type=int, default=1024, help="size of the text (default %(default)s)")
    parser.add_argument("--proxy", type=Path, default=PROXY, help="the program (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as folder:
        return run_on_uvloop(lambda: _measure(Path(folder), flags))


async def _measure(folder: Path, flags: argparse.Namespace) -> BenchResult:
    text = "x" * flags.bytes
    async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
        ways: dict[str, _Way] = {
            "ours": await stack.enter_async_context(_ours(folder, text)),
            "sdk": await stack.enter_async_context(_sdk(text)),
        }
        if flags.proxy.exists():
            ways["proxy"] = await stack.enter_async_context(_proxy(flags.proxy, text))
        calls = {name: way.call for name, way in ways.items()}
        samples = await take_turns(calls, flags.calls, min(WARM_UP, flags.calls))
        cpu = {name: await _cpu_ms(way, flags.calls) for name, way in ways.items()}
    figures: dict[str, float] = {"ours_cpu_ms": cpu["ours"]}
    baseline: dict[str, float] = {f"{way}_cpu_ms": cpu[way] for way in cpu if way != "ours"}
    ratio: dict[str, float] = {f"ours_over_{way}_cpu": cpu["ours"] / cpu[way] for way in cpu if way != "ours"}
    for name, of in (("p50", p50), ("p99", p99)):
        ours = figures[f"ours_ms_{name}"] = of(samples["ours"])
        figures[f"added_ms_{name}"] = ours - of(samples["sdk"])
        for way in ("sdk", "proxy"):
            if way in samples:
                baseline[f"{way}_ms_{name}"] = of(samples[way])
                ratio[f"ours_over_{way}_{name}"] = ours / of(samples[way])
    return BenchResult("mcp_overhead", figures, baseline, ratio)


@dataclass(frozen=True, slots=True)
class _Way:
    """A call, and the process between this one and the server."""

    call: Variant
    pid: int | None = None


async def _cpu_ms(way: _Way, calls: int) -> float:
    """The processor's time of one call in milliseconds, over many in a row."""

    def used() -> float:
        return time.process_time() + (cost_of(way.pid).cpu_s if way.pid is not None else 0.0)

    before = used()
    for _ in range(calls):
        await way.call()
    return (used() - before) * 1000 / calls


def _command() -> list[str]:
    declaration: dict[str, Any] = mcp_route.declaration()
    return [declaration["command"], *declaration["args"]]


@contextlib.asynccontextmanager
async def _ours(folder: Path, text: str) -> AsyncIterator[_Way]:
    async with pool_process(folder) as (process, address), pool_client(address) as pool:
        found = await pool.discover(run_context(mcp_route.manifest()), HASH, AbortSignal())
        run, signal = run_context(mcp_route.manifest(), snapshot=found.snapshot), AbortSignal()
        record = servers_for(run).record(None, mcp_route.CAPABILITY, mcp_route.TOOL)
        assert record is not None, found.diagnostics

        async def call() -> None:
            effect = tool_effect(mcp_route.CAPABILITY, mcp_route.TOOL, {"text": text})
            outcome: Any = (await pool.call(record, effect, run, signal, False)).value
            assert outcome["output"] == text

        yield _Way(call, process.pid)


@contextlib.asynccontextmanager
async def _sdk(text: str) -> AsyncIterator[_Way]:
    command, *arguments = _command()
    parameters = StdioServerParameters(command=command, args=arguments)
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        yield _Way(await _calls_of(session, text))


@contextlib.asynccontextmanager
async def _proxy(program: Path, text: str) -> AsyncIterator[_Way]:
    process = await asyncio.create_subprocess_exec(
        *death_signal_prefix(),
        str(program),
        "--port=0",
        "--log-level=INFO",
        "--",
        *_command(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    assert process.stderr is not None
    rest = None
    try:
        url = await _address(process.stderr)
        rest = asyncio.create_task(_drain(process.stderr))
        async with (
            streamable_http_client(f"{url}/mcp/") as (read, write),
            ClientSession(read, write) as session,
        ):
            yield _Way(await _calls_of(session, text), process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if rest is not None:
            await rest


async def _address(log: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(READY_S):
            while line := await log.readline():
                found = _SERVES.search(line)
                if found is not None:
                    return found[1].decode()
    except TimeoutError:
        pass
    raise NotReady("mcp-proxy did not get ready")


async def _drain(log: asyncio.StreamReader) -> None:
    while await log.readline():
        pass


async def _calls_of(session: ClientSession, text: str) -> Variant:
    await session.initialize()
    # The client asks for the tools before a call unless it has seen them.
    await session.list_tools()

    async def call() -> None:
        result: Any = await session.call_tool("echo", {"text": text})
        assert result.content[0].text == text

    return call
