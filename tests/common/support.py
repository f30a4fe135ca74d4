"""A served service for tests: the real port of a process on a Unix socket, and a channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2, model_executor_pb2_grpc

from services.common.channel import bearer, open_channel
from services.common.server import ServerSettings, serve
from services.common.work import WorkBook
from tests.leaks.watch import secret

TOKEN = secret("ab" * 32)
BOUND_S = 20.0
"""No wait of a test is longer."""


@dataclass
class Served:
    """A running port."""

    address: str
    channel: grpc.aio.Channel
    stop: asyncio.Event
    task: asyncio.Task[None]
    metadata: Any = field(default_factory=lambda: bearer(TOKEN))

    async def end(self) -> None:
        """Drains and waits."""
        self.stop.set()
        async with asyncio.timeout(BOUND_S):
            await self.task


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A short path of mode 0700: sockets have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="wt") as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def served(
    service: Any,
    *,
    listen: str | None = None,
    token: str | None = TOKEN,
    stop_grace_ms: int = 2000,
    max_message_bytes: int = 65 * 1024 * 1024,
    telemetry: Any = None,
    drain_delay_ms: int = 0,
    tls: Any = None,
) -> AsyncIterator[Served]:
    """Serves on a Unix socket (or `listen`) and ends everything afterwards."""
    with socket_folder() as folder:
        settings = ServerSettings(
            listen=listen or f"unix:{folder}/s",
            token=token,
            stop_grace_ms=stop_grace_ms,
            max_message_bytes=max_message_bytes,
            drain_delay_ms=drain_delay_ms,
            tls=tls,
        )
        stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(service, settings, stop, ready.set_result, telemetry))
        await asyncio.wait({task, ready}, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        address = ready.result()
        channel = open_channel(address)
        try:
            yield Served(address, channel, stop, task)
        finally:
            await channel.close(None)
            stop.set()
            await asyncio.wait({task}, timeout=BOUND_S)
            assert task.done(), "the port did not stop"
            task.result()


async def until(condition: Callable[[], Any]) -> None:
    """Waits for a state that nobody announces."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  (there is nothing to wait on)
            await asyncio.sleep(0.002)


class Recorder(model_executor_pb2_grpc.ModelExecutorServicer):
    """A model executor whose handlers are given by the test."""

    full_name = "whippletree.v1.ModelExecutor"
    service = "model-executor"

    def __init__(self) -> None:
        self.work = WorkBook()
        self.seen: list[str] = []

    def register(self, server: grpc.aio.Server) -> None:
        model_executor_pb2_grpc.add_ModelExecutorServicer_to_server(self, server)

    def facts(self) -> dict[str, str]:
        return {"route": "scripted"}

    def in_flight(self) -> Sequence[admin_pb2.CallInFlight]:
        return self.work.in_flight()

    async def stop_taking(self) -> None:
        self.seen.append("stop taking")

    async def close(self) -> None:
        self.seen.append("close")
