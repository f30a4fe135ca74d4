"""The mcp-pool as a process of its own, and a gateway's client of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.processes import Child, child
from gateway.executors.mcp import FULL_NAME, SERVICE, GrpcMcp
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.timings import ExecutorTimings
from services.common.channel import DEFAULT_MAX_MESSAGE_BYTES

TOKEN: Final = "ab" * 32


@dataclass(frozen=True, slots=True)
class Target:
    """Where the pool is."""

    name: str
    target: str


@contextlib.asynccontextmanager
async def pool_process(folder: Path, **settings: str) -> AsyncIterator[tuple[Child, str]]:
    """Starts a pool with a root folder of its own; the process and its address. Raises NotReady."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "NYLORUN_GRPC_LISTEN": "127.0.0.1:0",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(folder / "root"),
        **settings,
    }
    argv = (sys.executable, "-m", "services.mcp_pool.main")
    async with child("mcp-pool", argv, environ) as process:
        yield process, str((await process.ready("grpc_serving"))["address"])


@contextlib.asynccontextmanager
async def pool_client(address: str) -> AsyncIterator[GrpcMcp]:
    """The gateway's own client, once the pool serves."""
    timings = ExecutorTimings()
    replicas = ReplicaSet(
        SERVICE,
        FULL_NAME,
        [Target(SERVICE, address)],
        token=TOKEN,
        timings=timings,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
    )
    await replicas.open()
    try:
        yield GrpcMcp(replicas, timings)
    finally:
        await replicas.close()
