"""The connections of all sessions to their servers: one per key, shared by its calls, closed when idle
(mcp-pool 7.1 and 9.4).

A connection that ends is taken out at once; the next request opens a new one. What the pool leaves to be
closed is closed by tasks that it owns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from services.common.logs import get_logger
from services.tool_gate.failures import Lost, Unreachable

IDLE_S: Final = 15 * 60.0
SWEEP_S: Final = 60.0
CLOSE_S: Final = 12.0
"""What closing all connections may take together."""
_ATTEMPTS: Final = 3
"""A connection may end between its opening and its use; more often it is the server's own doing."""


class ServerKey(NamedTuple):
    """Whose connection: never shared across sessions, agents or capabilities."""

    session_id: str
    agent_id: str | None
    capability_id: str
    server_name: str


class Upstream(Protocol):
    """A connection to a server."""

    @property
    def usable(self) -> bool:
        """New requests can be sent."""
        ...

    @property
    def secrets(self) -> Sequence[str]:
        """The credentials that go with its requests; they may stand in no answer."""
        ...

    async def open(self) -> None:
        """Connects and initialises. Raises UpstreamFailure."""
        ...

    async def request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """One request. Raises UpstreamFailure."""
        ...

    async def close(self) -> None:
        """Ends it, requests in flight included."""
        ...


Connect = Callable[[Callable[[Any], None]], Awaitable[Upstream]]
"""Prepares a connection from what is called once when it has ended. Raises UpstreamFailure."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: ServerKey
    upstream: Upstream
    last_used: float
    active: int = 0
    retired: bool = False


class UpstreamPool:
    """See the module. `clock` gives seconds and never goes back."""

    def __init__(self, *, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._entries: dict[ServerKey, _Entry] = {}
        self._pending: dict[ServerKey, asyncio.Task[_Entry]] = {}
        self._retiring: set[_Entry] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def connections(self) -> int:
        """Connections that are pooled, in last use, or being closed."""
        return len(self._entries) + len(self._retiring) + len(self._closing)

    @asynccontextmanager
    async def lease(self, key: ServerKey, connect: Connect) -> AsyncIterator[Upstream]:
        """A usable connection, opened when there is none; requests share one opening per key.

        Raises UpstreamFailure. When cancelled, the opening goes on.
        """
        entry = await self._entry(key, connect)
        entry.active += 1
        try:
            yield entry.upstream
        finally:
            entry.active -= 1
            entry.last_used = self._clock()
            if entry.retired and not entry.active:
                self._discard(entry)

    async def _entry(self, key: ServerKey, connect: Connect) -> _Entry:
        for _ in range(_ATTEMPTS):
            entry = self._entries.get(key)
            if entry is not None and entry.upstream.usable:
                return entry
            if entry is not None:
                self._retire(entry)
            if self._closed:
                break
            pending = self._pending.get(key)
            if pending is None:
                pending = asyncio.get_running_loop().create_task(self._open(key, connect))
                self._pending[key] = pending
                pending.add_done_callback(lambda task: self._forget(key, task))
            await asyncio.wait({pending})
            if pending.cancelled():
                break
            entry = pending.result()
            if entry.upstream.usable and not entry.retired:
                return entry
        raise Unreachable("The Tool Gate is stopping." if self._closed else _ENDS)

    def _forget(self, key: ServerKey, task: asyncio.Task[_Entry]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody else has to

    async def _open(self, key: ServerKey, connect: Connect) -> _Entry:
        upstream = await connect(self._ended)
        try:
            await upstream.open()
        except BaseException:
            self._close_later(upstream)
            raise
        if self._closed or not upstream.usable:
            self._close_later(upstream)
            raise Lost(_ENDS)
        entry = self._entries[key] = _Entry(key, upstream, self._clock())
        return entry

    def close(self, key: ServerKey) -> None:
        """Takes a connection out; it is closed when its last request ends."""
        entry = self._entries.get(key)
        if entry is not None:
            self._retire(entry)

    def retire(self, upstream: Upstream) -> None:
        """Takes out a connection whose server does not know it any more."""
        self._ended(upstream)

    def _ended(self, upstream: Upstream) -> None:
        for entry in self._entries.values():
            if entry.upstream is upstream:
                self._retire(entry)
                return

    def _retire(self, entry: _Entry) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        if entry.retired:
            return
        entry.retired = True
        if entry.active:
            self._retiring.add(entry)
        else:
            self._discard(entry)

    def _discard(self, entry: _Entry) -> None:
        self._retiring.discard(entry)
        self._close_later(entry.upstream)

    def _close_later(self, upstream: Upstream) -> None:
        task = asyncio.get_running_loop().create_task(upstream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def sweep(self) -> int:
        """Takes out what has not been used for the idle time; returns how many."""
        now = self._clock()
        idle = [
            entry
            for entry in self._entries.values()
            if not entry.active and now - entry.last_used >= self._idle_s
        ]
        for entry in idle:
            self._retire(entry)
        return len(idle)

    async def sweep_forever(self, every_s: float = SWEEP_S) -> None:
        """Sweeps regularly until it is cancelled."""
        while True:
            await asyncio.sleep(every_s)
            swept = self.sweep()
            if swept:
                get_logger().info("mcp_idle_closed", connections=swept)

    async def shut(self) -> None:
        """Closes everything, requests in flight included, and waits within bounds."""
        self._closed = True
        pending = list(self._pending.values())
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_S)
        for entry in [*self._entries.values(), *self._retiring]:
            self._entries.pop(entry.key, None)
            if not entry.retired or entry.active:
                entry.retired, entry.active = True, 0
                self._discard(entry)
        closing = set(self._closing)
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
            for left in closing:
                left.cancel()


_ENDS: Final = "The connection to the MCP server ends as soon as it is opened."
