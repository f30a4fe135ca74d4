"""The live connections of all sessions: one per key, shared by its calls, closed when idle (mcp-pool 7).

Changes of the pool's state are synchronous; what they leave to be closed is closed by tasks that the pool
owns. A connection that ends by itself is taken out at once, so that the next call opens a new one. Each has
a seat (seats.py) from before it is opened until it is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from services.common import metrics
from services.common.logs import error_text, get_logger
from services.mcp_pool.connection import Abort, Connecting, Connection, Connector
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.entries import Entry, Opening
from services.mcp_pool.failures import ConnectionLost, McpFailure
from services.mcp_pool.lease import SHUTTING_DOWN, Lease
from services.mcp_pool.limits import Limits
from services.mcp_pool.preparation import Preparation
from services.mcp_pool.seats import Owner, Seat, Seats
from services.mcp_pool.session import PoolKey
from services.mcp_pool.slots import OpeningSlots

_CLOSE_MARGIN_SECONDS: Final = 0.5
"""What closing may take beyond the grace of the children themselves (mcp-pool 10.2)."""

_KILLED_SECONDS: Final = 2.0
"""What the end of killed children may take when there was no time for their grace."""


class ConnectionPool:
    """See the module. `clock` gives seconds and never goes back."""

    def __init__(
        self, connector: Connector, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connector = connector
        self._limits = limits
        self._clock = clock
        self._slots = OpeningSlots(limits.opening, limits.slot)
        self._seats = Seats(limits.connections, limits.per_session)
        self._seat_of: dict[Connection, Seat] = {}
        self._opened: dict[Connection, tuple[float, str]] = {}
        self._entries: dict[PoolKey, Entry] = {}
        self._openings: dict[PoolKey, Opening] = {}
        self._retiring: set[Entry] = set()
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

    def transports(self) -> dict[str, int]:
        """Open connections by how their servers are reached. May be asked in any thread."""
        return {"pipe": 0, "tcp": 0} | Counter(transport for _, transport in list(self._opened.values()))

    @property
    def seats(self) -> int:
        """Connections that are there or were promised a place, those being closed included."""
        return len(self._seats)

    def _live(self, key: PoolKey) -> Entry | None:
        entry = self._entries.get(key)
        return entry if entry is not None and entry.lendable else None

    # -- opening

    async def open(
        self, key: PoolKey, server: DeclaredServer, on_slot: Callable[[], None] | None = None
    ) -> Connection:
        """Opens a connection that is not in the pool yet. Raises McpFailure, OverLimit before anything began.

        `on_slot` is called when its turn has come. When cancelled, what was started is closed.
        """
        return await self._open_seated(await self._seat(key, server), on_slot)

    async def _seat(self, key: PoolKey, server: DeclaredServer) -> Connecting:
        if self._closed:
            raise McpFailure(SHUTTING_DOWN)
        connecting = self._connector.connect(key, server, self._ended)
        owner = (key.tenant_id, key.session_id)
        self._seat_of[connecting.connection] = await self._seats.take(owner, self._evict)
        return connecting

    async def _open_seated(
        self, connecting: Connecting, on_slot: Callable[[], None] | None = None
    ) -> Connection:
        try:
            async with self._slots.slot():
                if on_slot is not None:
                    on_slot()
                if self._closed:
                    raise McpFailure(SHUTTING_DOWN)
                await connecting.opening()
                self._opened[connecting.connection] = (self._clock(), connecting.transport)
        except BaseException:
            self.discard(connecting.connection)
            raise
        return connecting.connection

    def put(self, key: PoolKey, connection: Connection) -> Entry | None:
        """Takes a connection in; one that is there already stays and the new one is closed.

        Returns what is in the pool now: None when the connection has ended or the pool is closed.
        """
        there = self._live(key)
        if there is not None or self._closed or not connection.usable:
            self.discard(connection)
            return there
        entry = self._entries[key] = Entry(key, connection, self._clock())
        return entry

    def discard(self, connection: Connection) -> asyncio.Task[None]:
        """Closes a connection in the background; its seat is free when it is closed."""
        seat = self._seat_of.pop(connection, None)
        opened = self._opened.pop(connection, None)
        if opened is not None:
            metrics.current.record(
                "mcp.client.session.duration", self._clock() - opened[0], {"network.transport": opened[1]}
            )
        task = asyncio.get_running_loop().create_task(self._close_one(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        if seat is not None:
            self._seats.closing(seat)
            task.add_done_callback(lambda _: self._seats.give_back(seat))
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

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that nobody waits for, and that ends with the pool."""
        self.own(work).add_done_callback(_told_when_failed)

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody else has to

    # -- use

    @asynccontextmanager
    async def lease(self, key: PoolKey, server: DeclaredServer, abort: Abort) -> AsyncIterator[Lease]:
        """A call's hold on its connection, secured. Raises OverLimit, other McpFailures, RequestAborted."""
        lease = Lease(self, key, server, abort)
        try:
            await lease.secure()
            yield lease
        finally:
            lease.release()

    @contextmanager
    def preparation(self) -> Iterator[Preparation]:
        """What is opened or touched inside is idle only after it."""
        preparation = Preparation(self)
        try:
            yield preparation
        finally:
            preparation.end()

    def take_live(self, key: PoolKey) -> Entry | None:
        """The live connection of a key, used from now on."""
        entry = self._live(key)
        if entry is not None:
            self.take(entry)
        return entry

    def take(self, entry: Entry) -> None:
        """Uses an entry."""
        entry.active += 1

    def release(self, entry: Entry) -> None:
        """Uses it no more."""
        entry.active -= 1
        entry.last_used = self._clock()
        if entry.retired and not entry.active and not entry.discarded:
            self._discard_entry(entry)

    def take_opening(self, key: PoolKey, server: DeclaredServer) -> Opening:
        """The opening of a key, shared by its calls; a new one waits for its seat and for the first start."""
        opening = self._openings.get(key)
        if opening is None:
            opening = Opening(key, self.own(self._seat(key, server)), self._begin)
            self._openings[key] = opening
            opening.seating.add_done_callback(lambda task: self._seated(opening, task))
        opening.users += 1
        return opening

    def release_opening(self, opening: Opening) -> None:
        """Waits for it no more; what was begun goes on, what was not is given up."""
        opening.users -= 1
        if opening.users:
            return
        if opening.opening is not None:
            self._let_go(opening)
            return
        self._forget(opening)
        if not opening.seating.done():
            opening.seating.cancel()
        elif not opening.seating.cancelled() and opening.seating.exception() is None:
            self.discard(opening.seating.result().connection)

    def _seated(self, opening: Opening, task: asyncio.Task[Connecting]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget(opening)
        elif not opening.users:
            # Given up in the moment in which its seat came.
            self.discard(task.result().connection)

    def _begin(self, opening: Opening) -> asyncio.Task[Entry]:
        task = self.own(self._open_entry(opening, opening.seating.result()))
        task.add_done_callback(lambda _: self._forget(opening))
        return task

    async def _open_entry(self, opening: Opening, connecting: Connecting) -> Entry:
        try:
            async with asyncio.timeout(self._limits.server):
                connection = await self._open_seated(connecting)
        except TimeoutError:
            raise McpFailure(f"The MCP server was not open within {self._limits.server:g} s.") from None
        entry = self.put(opening.key, connection)
        if entry is None:
            raise ConnectionLost("The MCP server ended as soon as it was started.")
        self.take(entry)
        opening.entry = entry
        if not opening.users:
            self._let_go(opening)
        return entry

    def _let_go(self, opening: Opening) -> None:
        entry, opening.entry = opening.entry, None
        if entry is not None:
            self.release(entry)

    def _forget(self, opening: Opening) -> None:
        if self._openings.get(opening.key) is opening:
            del self._openings[opening.key]

    # -- ends

    def _ended(self, connection: Connection) -> None:
        for entry in self._entries.values():
            if entry.connection is connection:
                self._retire(entry)
                return

    def _retire(self, entry: Entry) -> None:
        """Out of the pool; closed now, or when its last call ends."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        entry.retired = True
        if entry.active:
            self._retiring.add(entry)
        else:
            self._discard_entry(entry)

    def _discard_entry(self, entry: Entry) -> None:
        self._retiring.discard(entry)
        entry.discarded = True
        closing, gone = self.discard(entry.connection), entry.gone
        if gone is not None:
            closing.add_done_callback(lambda _: None if gone.done() else gone.set_result(None))

    def _evict(self, owner: Owner | None) -> bool:
        """Begins to close the connection that has been idle for the longest time."""
        idle = [
            entry for entry in self._entries.values() if not entry.active and owner in (None, entry.key[:2])
        ]
        if not idle:
            return False
        entry = min(idle, key=lambda candidate: candidate.last_used)
        get_logger().info("mcp_evicted", sessionId=entry.key.session_id, server=entry.key.name.server_name)
        self._retire(entry)
        return True

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
        begun = [
            opening.opening
            for opening in self._openings.values()
            if opening.key[:2] == session and opening.opening is not None
        ]
        if begun:
            await asyncio.wait(begun, timeout=self._limits.server)
        mine = [entry for key, entry in self._entries.items() if key[:2] == session]
        for entry in mine:
            entry.gone = asyncio.get_running_loop().create_future()
            self._retire(entry)
        gone = [entry.gone for entry in mine if entry.gone is not None]
        if gone:
            await asyncio.wait(gone, timeout=self._limits.request + self.close_s)
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
            self._entries.pop(entry.key, None)
            self._discard_entry(entry)
        try:
            if owned:
                await asyncio.wait(owned, timeout=self.close_s)
            if self._closing:
                await asyncio.wait(set(self._closing), timeout=self.close_s)
        finally:
            left = list(self._closing)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_KILLED_SECONDS)

    @property
    def close_s(self) -> float:
        """What closing connections takes at worst, in seconds; what is left then is killed."""
        return self._limits.grace.total() + _CLOSE_MARGIN_SECONDS


def _told_when_failed(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        get_logger().error("mcp_background_failed", error=error_text(error))
