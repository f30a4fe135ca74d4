"""A server that floods notifications, and how long another session's calls take meanwhile.

Through the gateway's client and the mcp-pool's process. One session calls an echo tool again and again; the
other one's server writes 100,000 notifications into each of its answers. Two kinds of flood: notifications
that mean nothing to the pool, and `tools/list_changed`, which do. The same calls without a flood stand
beside them.

Figures, in milliseconds: `delay_ms_p99` and `tools_delay_ms_p99` (by how much the 99th percentile is above
that of quiet calls), `flooded_ms_*`, `tools_flooded_ms_*`, and how many notifications a second were taken.
Baseline: `quiet_ms_*`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from bench import mcp_route
from bench.environment import run_on_uvloop
from bench.pool_process import pool_client, pool_process
from bench.result import BenchResult, percentile
from bench.run_context import HASH, run_context, tool_effect
from gateway.executors.contract import AbortSignal
from gateway.executors.mcp import GrpcMcp
from gateway.executors.run_servers import servers_for
from protocol.jsjson import JsonValue

NOTIFICATIONS: Final = 100_000
BOUND_S: Final = 300.0
_LOG: Final = "notifications/message"
_TOOLS: Final = "notifications/tools/list_changed"

Call = Callable[[], Awaitable[None]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--floods", type=int, default=10, help="floods of each kind (default %(default)s)")
    parser.add_argument("--calls", type=int, default=1000, help="quiet calls (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as folder:
        return run_on_uvloop(lambda: _measure(Path(folder), flags))


async def _measure(folder: Path, flags: argparse.Namespace) -> BenchResult:
    figures: dict[str, float] = {}
    async with (
        asyncio.timeout(BOUND_S),
        pool_process(folder) as (_, address),
        pool_client(address) as pool,
    ):
        echo = await _caller(pool, "quiet", mcp_route.declaration(), "echo", {"text": "x" * 100})
        quiet = [await _timed(echo) for _ in range(flags.calls)]
        for prefix, method in (("", _LOG), ("tools_", _TOOLS)):
            arguments: dict[str, JsonValue] = {"count": NOTIFICATIONS, "method": method}
            flood = await _caller(pool, f"loud {prefix}", _flooding(), "flood", arguments)
            began = time.perf_counter()
            samples = await _while_flooded(echo, flood, flags.floods)
            took = time.perf_counter() - began
            figures |= {
                f"{prefix}delay_ms_p99": percentile(samples, 0.99) - percentile(quiet, 0.99),
                f"{prefix}flooded_ms_p50": percentile(samples, 0.5),
                f"{prefix}flooded_ms_p99": percentile(samples, 0.99),
                f"{prefix}calls": float(len(samples)),
                f"{prefix}notifications_per_s": flags.floods * NOTIFICATIONS / took,
            }
    baseline = {f"quiet_ms_p{share}": percentile(quiet, share / 100) for share in (50, 99)}
    return BenchResult("mcp_flood", figures, baseline)


def _flooding() -> dict[str, JsonValue]:
    script = str(Path(__file__).with_name("flood_server.py"))
    return {"name": "flood", "type": "stdio", "command": sys.executable, "args": ["-S", "-I", script]}


async def _caller(
    pool: GrpcMcp, session: str, declaration: dict[str, JsonValue], tool: str, arguments: JsonValue
) -> Call:
    """A tool of a session of its own, whose server is open."""
    name = str(declaration["name"])
    capability: dict[str, JsonValue] = {"id": "cap", "type": "agent", "mcpServers": {name: declaration}}
    manifest: dict[str, JsonValue] = {"id": "bench", "capabilities": [capability]}
    found = await pool.discover(run_context(manifest, session=session), HASH, AbortSignal())
    run = run_context(manifest, snapshot=found.snapshot, session=session)
    record = servers_for(run).record(None, "cap", f"{name}__{tool}")
    assert record is not None, found.diagnostics

    async def call() -> None:
        effect = tool_effect("cap", f"{name}__{tool}", arguments)
        outcome: Any = (await pool.call(record, effect, run, AbortSignal(), False)).value
        assert outcome["kind"] == "completed", outcome

    return call


async def _timed(call: Call) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def _while_flooded(call: Call, flood: Call, floods: int) -> list[float]:
    samples: list[float] = []

    async def loud() -> None:
        for _ in range(floods):
            await flood()

    flooding = asyncio.create_task(loud())
    while not flooding.done():
        samples.append(await _timed(call))
    await flooding
    return samples
