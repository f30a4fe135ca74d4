"""A call's hold on its connection: secured before the call is accepted, opened after it has started."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from services.mcp_pool.aborts import stopping
from services.mcp_pool.connection import Abort, Connection
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.entries import Entry, Opening
from services.mcp_pool.failures import ConnectionLost, McpFailure
from services.mcp_pool.session import PoolKey
from services.mcp_pool.waits import until_done

SHUTTING_DOWN: Final = "The MCP pool is shutting down."

ATTEMPTS: Final = 3
"""A connection that was opened for a call may end before the call gets it; more often than this it is the
server's own doing."""


class Lender(Protocol):
    """What a lease asks of the pool. Every take is followed by one release."""

    def take_live(self, key: PoolKey) -> Entry | None:
        """The live connection of a key, used from now on."""
        ...

    def take(self, entry: Entry) -> None:
        """Uses an entry."""
        ...

    def release(self, entry: Entry) -> None:
        """Uses it no more."""
        ...

    def take_opening(self, key: PoolKey, server: DeclaredServer) -> Opening:
        """The opening of a key that has no live connection, begun by nobody yet or under way."""
        ...

    def release_opening(self, opening: Opening) -> None:
        """Waits for it no more."""
        ...


class Lease:
    """See the module. Used by one call; `release` is called at its end."""

    def __init__(self, lender: Lender, key: PoolKey, server: DeclaredServer, abort: Abort) -> None:
        self._lender = lender
        self._key = key
        self._server = server
        self._abort = abort
        self._stops = stopping(server)
        self._entry: Entry | None = None
        self._opening: Opening | None = None

    async def secure(self) -> None:
        """Makes sure that there is a connection, or a seat for one; starts nothing.

        Raises OverLimit and other McpFailures, RequestAborted.
        """
        if self._entry is not None and self._entry.lendable:
            return
        if self._opening is None:
            self.release()
            self._entry = self._lender.take_live(self._key)
            if self._entry is not None:
                return
            self._opening = self._lender.take_opening(self._key, self._server)
        await until_done(self._opening.seating, self._abort, self._stops)
        _result(self._opening.seating)

    async def connection(self) -> Connection:
        """The connection, opened when there is none; calls share one opening per key.

        Raises McpFailure when it can't be opened, RequestAborted when an abort ends the wait (the opening
        goes on).
        """
        for _ in range(ATTEMPTS):
            await self.secure()
            if self._opening is not None:
                task = self._opening.begun()
                await until_done(task, self._abort, self._stops)
                entry: Entry = _result(task)
                self._lender.take(entry)
                self.release()
                self._entry = entry
            if self._entry is not None and self._entry.lendable:
                return self._entry.connection
        raise ConnectionLost("The MCP server ends as soon as it is started.")

    def release(self) -> None:
        """Gives everything back."""
        entry, self._entry = self._entry, None
        opening, self._opening = self._opening, None
        if entry is not None:
            self._lender.release(entry)
        if opening is not None:
            self._lender.release_opening(opening)


def _result(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        raise McpFailure(SHUTTING_DOWN)
    return task.result()
