"""The live connections of all sessions: one per key, shared by its calls, closed when idle (mcp-pool 7).

Changes of the pool's state are synchronous; what they leave to be closed is closed by tasks that the pool
owns. A connection that ends by itself is taken out at once, so that the next call opens a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from services.common.logs import error_text, get_logger
from services.mcp_pool.aborts import stopping
from services.mcp_pool.connection import Abort, Connection, Connector
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.failures import ConnectionLost, McpFailure, RequestAborted
from services.mcp_pool.limits import Limits
from services.mcp_pool.session import PoolKey
from services.mcp_pool.slots import OpeningSlots

# A connection that was opened for a call may end before the call gets it; more often than this it is the
# server's own doing.
_ATTEMPTS: Final = 3

_SHUTTING_DOWN: Final = "The MCP pool is shutting down."

# What closing may take beyond the grace of the children themselves.
_CLOSE_MARGIN_SECONDS: Final = 2.0


@dataclass(slots=True, eq=False)
class _Entry:
    key: PoolKey
    connection: Connection
    last_used: float
    active: int = 0
    retired: bool = False
    discarded: bool = False
    gone: asyncio.Future[None] | None = None


class ConnectionPool:
    """See the module. `clock` gives seconds and never goes back."""

    def __init__(
        self, connector: Connector, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connector = connector
        self._limits = limits
        self._clock = clock
        self._slots = OpeningSlots(limits.opening, limits.slot)
        self._entries: dict[PoolKey, _Entry] = {}
        self._pending: dict[PoolKey, asyncio.Task[_Entry]] = {}
        self._retiring: set[_Entry] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    # -- what is there

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def connections(self) -> int:
        """Connections that are pooled, in last use, or being closed."""
        return len(self._entries) + len(self._retiring) + len(self._closing)

    def touch(self, key: PoolKey) -> bool:
        """Marks a live connection as used now; False when there is none."""
        entry = self._live(key)
        if entry is not None:
            entry.last_used = self._clock()
        return entry is not None

    def _live(self, key: PoolKey) -> _Entry | None:
        entry = self._entries.get(key)
        return entry if entry is not None and entry.connection.usable else None

    # -- opening

    async def open(
        self, key: PoolKey, server: DeclaredServer, on_slot: Callable[[], None] | None = None
    ) -> Connection:
        """Opens a connection that is not in the pool yet. Raises McpFailure.

        `on_slot` is called when its turn has come. When cancelled, what was started is closed.
        """
        connecting = self._connector.connect(key, server, self._ended)
        async with self._slots.slot():
            if on_slot is not None:
                on_slot()
            if self._closed:
                raise McpFailure(_SHUTTING_DOWN)
            try:
                await connecting.opening()
            except BaseException:
                self.discard(connecting.connection)
                raise
        return connecting.connection

    def put(self, key: PoolKey, connection: Connection) -> bool:
        """Takes a connection in; one that is there already stays and the new one is closed."""
        return self._put(key, connection) is not None

    def _put(self, key: PoolKey, connection: Connection) -> _Entry | None:
        there = self._live(key)
        if there is not None or self._closed or not connection.usable:
            self.discard(connection)
            return there
        entry = self._entries[key] = _Entry(key, connection, self._clock())
        return entry

    def discard(self, connection: Connection) -> asyncio.Task[None]:
        """Closes a connection in the background."""
        task = asyncio.get_running_loop().create_task(self._close_one(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close_one(self, connection: Connection) -> None:
        try:
            await connection.close()
        except OSError as error:
            get_logger().warning("mcp_close_failed", error=error_text(error))

    def own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs work that may outlive who asked for it, and ends with the pool."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody else has to

    # -- calls

    @asynccontextmanager
    async def lease(self, key: PoolKey, server: DeclaredServer, abort: Abort) -> AsyncIterator[Connection]:
        """A usable connection for one call, opened when there is none; calls share one opening per key.

        Raises McpFailure when it can't be opened, RequestAborted when an abort ends the wait (the
        opening goes on).
        """
        entry = await self._entry(key, server, abort)
        entry.active += 1
        try:
            yield entry.connection
        finally:
            entry.active -= 1
            entry.last_used = self._clock()
            if entry.retired and not entry.active:
                self._discard_entry(entry)

    async def _entry(self, key: PoolKey, server: DeclaredServer, abort: Abort) -> _Entry:
        for _ in range(_ATTEMPTS):
            entry = self._live(key)
            if entry is None:
                pending = self._pending.get(key)
                if pending is None:
                    pending = self._pending[key] = self.own(self._open_entry(key, server))
                    pending.add_done_callback(lambda task: self._forget_pending(key, task))
                await _until_done(pending, abort, stopping(server))
                if pending.cancelled():
                    raise McpFailure(_SHUTTING_DOWN)
                entry = pending.result()
            if entry.connection.usable and not entry.discarded:
                return entry
        raise ConnectionLost("The MCP server ends as soon as it is started.")

    async def _open_entry(self, key: PoolKey, server: DeclaredServer) -> _Entry:
        try:
            async with asyncio.timeout(self._limits.server):
                connection = await self.open(key, server)
        except TimeoutError:
            raise McpFailure(f"The MCP server was not open within {self._limits.server:g} s.") from None
        entry = self._put(key, connection)
        if entry is None:
            raise ConnectionLost("The MCP server ended as soon as it was started.")
        return entry

    def _forget_pending(self, key: PoolKey, task: asyncio.Task[_Entry]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]

    # -- ends

    def _ended(self, connection: Connection) -> None:
        for entry in self._entries.values():
            if entry.connection is connection:
                self._retire(entry)
                return

    def _retire(self, entry: _Entry) -> None:
        """Out of the pool; closed now, or when its last call ends."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        entry.retired = True
        if entry.active:
            self._retiring.add(entry)
        else:
            self._discard_entry(entry)

    def _discard_entry(self, entry: _Entry) -> None:
        self._retiring.discard(entry)
        entry.discarded = True
        closing, gone = self.discard(entry.connection), entry.gone
        if gone is not None:
            closing.add_done_callback(lambda _: None if gone.done() else gone.set_result(None))

    def sweep(self) -> int:
        """Takes out what has not been used for the idle time; returns how many."""
        now = self._clock()
        idle = [
            entry
            for entry in self._entries.values()
            if not entry.active and now - entry.last_used >= self._limits.idle
        ]
        for entry in idle:
            self._retire(entry)
        return len(idle)

    def start_sweeping(self) -> None:
        """Sweeps regularly until the pool is closed."""
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep_forever())

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep)
            swept = self.sweep()
            if swept:
                get_logger().info("mcp_idle_closed", connections=swept)

    async def close_session(self, tenant_id: str, session_id: str) -> int:
        """Takes a session's connections out and waits, within bounds, until they are closed.

        Calls in flight end first. Returns how many there were.
        """
        session = (tenant_id, session_id)
        opening = [task for key, task in self._pending.items() if key[:2] == session]
        if opening:
            await asyncio.wait(opening, timeout=self._limits.server)
        mine = [entry for key, entry in self._entries.items() if key[:2] == session]
        for entry in mine:
            entry.gone = asyncio.get_running_loop().create_future()
            self._retire(entry)
        gone = [entry.gone for entry in mine if entry.gone is not None]
        if gone:
            await asyncio.wait(gone, timeout=self._limits.request + self._close_seconds())
        return len(mine)

    async def close(self) -> None:
        """Closes everything at once, calls in flight and openings included, and waits within bounds.

        When cancelled, what is left is killed.
        """
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        owned = list(self._tasks)
        for task in owned:
            task.cancel()
        for entry in [*self._entries.values(), *self._retiring]:
            entry.active, entry.retired = 0, False
            self._entries.pop(entry.key, None)
            self._discard_entry(entry)
        try:
            if owned:
                await asyncio.wait(owned, timeout=self._close_seconds())
            if self._closing:
                await asyncio.wait(set(self._closing), timeout=self._close_seconds())
        finally:
            left = list(self._closing)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_CLOSE_MARGIN_SECONDS)

    def _close_seconds(self) -> float:
        return self._limits.grace.total() + _CLOSE_MARGIN_SECONDS


async def _until_done(task: asyncio.Task[Any], abort: Abort, stops: frozenset[int]) -> None:
    """Waits for a task that goes on without us. Raises RequestAborted when an abort of `stops` comes first."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: object) -> None:
        if not over.done():
            over.set_result(None)

    def aborted(kind: int) -> None:
        if kind in stops and not over.done():
            over.set_exception(RequestAborted(kind))

    task.add_done_callback(done)
    abort.listen(aborted)
    try:
        await over
    finally:
        task.remove_done_callback(done)
        if not over.cancel() and not over.cancelled():
            over.exception()  # a cancel that came at the same moment as ours
