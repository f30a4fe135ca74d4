"""Servers that are not there: connections that keep what they are asked and answer what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.tool_gate.credentials import Access


class FakeUpstream:
    def __init__(self, servers: FakeServers, on_end: Callable[[Any], None], access: Access) -> None:
        self.servers = servers
        self.on_end = on_end
        self.usable = True
        self.secrets: Sequence[str] = access.secrets()
        self.opened = 0
        self.closed = 0
        self.cancelled = 0
        self.asked: list[tuple[str, Any]] = []

    async def open(self) -> None:
        self.opened += 1
        if self.servers.opening is not None:
            await self.servers.opening.wait()
        if self.servers.open_failure is not None:
            raise self.servers.open_failure

    async def request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        self.asked.append((method, params))
        try:
            if self.servers.hold is not None:
                await self.servers.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        result = self.servers.results.pop(0) if self.servers.results else self.servers.result
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            return dict(result)
        return {"tools": [{"name": "echo"}], "nextCursor": "2", "more": 1} if method == "tools/list" else {}

    async def close(self) -> None:
        self.closed += 1

    def end(self) -> None:
        self.usable = False
        self.on_end(self)


class FakeServers:
    """Makes connections; `result` (or the next of `results`) answers requests, an exception is raised."""

    def __init__(self) -> None:
        self.made: list[FakeUpstream] = []
        self.result: Any = None
        self.results: list[Any] = []
        self.hold: asyncio.Event | None = None
        self.opening: asyncio.Event | None = None
        self.open_failure: Exception | None = None

    def load(self) -> Callable[..., FakeUpstream]:
        return self.connect

    def connect(
        self, declaration: Mapping[str, Any], access: Access, on_end: Callable[[Any], None]
    ) -> FakeUpstream:
        del declaration
        self.made.append(FakeUpstream(self, on_end, access))
        return self.made[-1]
