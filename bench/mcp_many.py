"""Hundreds of stdio MCP servers in one mcp-pool: what each costs, and how fast all of them are gone.

Servers of the standard library (some 10 MB each) are opened for sessions of 30. One in ten ignores the end of
its input and SIGTERM, one in ten starts a process that does the same. Then the pool gets SIGTERM; a second
pool with as many servers gets SIGKILL.

Figures:
  most_opening         servers that were opening at the same time, as they saw it themselves
  kib_each             memory of the mcp-pool itself, for each server
  descriptors_each     its open files, for each server
  seconds_to_open      from the first request to the last answer
  seconds_after_term   from SIGTERM, with no call running, to the end of the pool and the last server
  seconds_after_kill   from SIGKILL to the end of the last server
  left                 processes that were there 30 s later
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from bench.environment import run_on_uvloop
from bench.pool_process import TOKEN, pool_process
from bench.process_costs import cost_of
from bench.processes import Child
from bench.result import BenchResult
from protocol.jsjson import JsonValue, dumps, loads
from services.common.channel import bearer, open_channel

PER_SESSION: Final = 30
BOUND_S: Final = 300.0
GONE_BOUND_S: Final = 30.0
_LOOK_S: Final = 0.01
_SCRIPT: Final = str(Path(__file__).with_name("many_server.py"))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--servers", type=int, default=300, help="servers of each pool (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as folder:
        term, kill = (
            run_on_uvloop(partial(_measure, Path(folder) / number.name, number, flags.servers))
            for number in (signal.SIGTERM, signal.SIGKILL)
        )
    figures = {"servers": float(flags.servers), **term, "seconds_after_term": term["seconds"]}
    figures |= {"seconds_after_kill": kill["seconds"], "left": term["left"] + kill["left"]}
    figures["most_opening"] = max(term["most_opening"], kill["most_opening"])
    del figures["seconds"]
    return BenchResult("mcp_many", figures)


@dataclass(frozen=True, slots=True)
class _Lived:
    """What the servers wrote: every process, and the time from birth to the first answer of each server."""

    pids: frozenset[int]
    openings: tuple[tuple[float, float], ...]

    def most_at_once(self) -> int:
        """How many servers were between birth and first answer at the same time."""
        steps = sorted([(begin, 1) for begin, _ in self.openings] + [(end, -1) for _, end in self.openings])
        now = most = 0
        for _, change in steps:
            now += change
            most = max(most, now)
        return most


def _read(journal: Path) -> _Lived:
    rows = [line.split() for line in journal.read_text(encoding="ascii").splitlines()]
    return _Lived(
        frozenset(int(row[0]) for row in rows),
        tuple((float(row[1]), float(row[2])) for row in rows if len(row) == 3),
    )


async def _measure(place: Path, number: signal.Signals, servers: int) -> dict[str, float]:
    place.mkdir()  # noqa: ASYNC240  (before anything runs)
    async with asyncio.timeout(BOUND_S), pool_process(place) as (pool, address):
        await _open(address, place / "warm", {"warm": ()})
        before, files = cost_of(pool.pid).resident_mib, _open_files(pool.pid)
        began = time.perf_counter()
        journal = place / "journal"
        kinds = {f"s{index}": _how(index) for index in range(servers)}
        await _open(address, journal, kinds)
        figures = {
            "seconds_to_open": time.perf_counter() - began,
            "kib_each": (cost_of(pool.pid).resident_mib - before) * 1024 / servers,
            "descriptors_each": (_open_files(pool.pid) - files) / servers,
        }
        lived = _read(journal)
        figures["most_opening"] = float(lived.most_at_once())
        took, left = await _end(pool, number, lived.pids | _read(place / "warm").pids)
        return figures | {"seconds": took, "left": float(left)}


def _how(index: int) -> tuple[str, ...]:
    return {0: ("stubborn",), 5: ("forks",)}.get(index % 10, ())


async def _open(address: str, journal: Path, servers: Mapping[str, tuple[str, ...]]) -> None:
    """Opens servers for sessions of 30, all sessions at the same time."""
    names = list(servers)
    async with open_channel(address) as channel:
        stub = mcp_pool_pb2_grpc.McpPoolStub(channel)

        async def session(first: int) -> None:
            mine: dict[str, JsonValue] = {
                name: {
                    "name": name,
                    "type": "stdio",
                    "command": sys.executable,
                    "args": ["-S", "-I", _SCRIPT, str(journal), *servers[name]],
                }
                for name in names[first : first + PER_SESSION]
            }
            reply = await stub.Discover(
                mcp_pool_pb2.DiscoverRequest(
                    tenant_id="bench",
                    session_id=f"{journal.name}-{first}",
                    root_manifest=common_pb2.Json(
                        text=dumps({"capabilities": [{"id": "cap", "mcpServers": mine}]})
                    ),
                ),
                metadata=bearer(TOKEN),
                timeout=BOUND_S,
            )
            diagnostics = loads(reply.diagnostics.text)
            assert isinstance(diagnostics, list)
            bad = [item for item in diagnostics if isinstance(item, dict) and item["outcome"] != "connected"]
            assert not bad, bad[:3]

        await asyncio.gather(*(session(first) for first in range(0, len(names), PER_SESSION)))


async def _end(pool: Child, number: signal.Signals, pids: frozenset[int]) -> tuple[float, int]:
    """Ends the pool; the seconds until nothing is left, and how many were after the bound."""
    began = time.perf_counter()
    os.kill(pool.pid, number)
    left = {*pids, pool.pid}
    while left and time.perf_counter() - began < GONE_BOUND_S:
        await asyncio.sleep(_LOOK_S)
        left = {pid for pid in left if not _gone(pid)}
    took = time.perf_counter() - began
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return took, len(left)


def _gone(pid: int) -> bool:
    """It has ended, whether or not it was reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in (b"Z", b"X")


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
