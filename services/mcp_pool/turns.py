"""How many calls of one connection run at a time: the others wait, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from services.mcp_pool.connection import Abort
from services.mcp_pool.waits import until_done

Waiting = Callable[[int], None]
"""Hears how many calls stand before a waiting one: at once, and whenever that changes."""


class _Ticket:
    __slots__ = ("came", "waiting")

    def __init__(self, waiting: Waiting | None) -> None:
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = waiting

    def tell(self, position: int) -> None:
        if self.waiting is not None:
            self.waiting(position)


class _Line:
    __slots__ = ("queue", "running")

    def __init__(self) -> None:
        self.running = 0
        self.queue: deque[_Ticket] = deque()


class CallTurns:
    """At most `limit` calls of a key run at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[Hashable, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(
        self, key: Hashable, abort: Abort, stops: frozenset[int], waiting: Waiting | None = None
    ) -> AsyncIterator[None]:
        """Holds a turn inside the block. Raises RequestAborted when an abort of `stops` ends the wait."""
        line = self._lines.setdefault(key, _Line())
        if line.running < self._limit:
            line.running += 1
        else:
            await self._wait(key, line, _Ticket(waiting), abort, stops)
        try:
            yield
        finally:
            self._leave(key, line)

    async def _wait(
        self, key: Hashable, line: _Line, ticket: _Ticket, abort: Abort, stops: frozenset[int]
    ) -> None:
        line.queue.append(ticket)
        try:
            # Those that run stand before it as well.
            ticket.tell(line.running + len(line.queue) - 1)
            await until_done(ticket.came, abort, stops)
        except BaseException:
            if ticket.came.done():
                self._leave(key, line)
            else:
                line.queue.remove(ticket)
                self._tell(line)
            raise

    def _leave(self, key: Hashable, line: _Line) -> None:
        """Hands the turn on; nobody overtakes those who wait."""
        if line.queue:
            line.queue.popleft().came.set_result(None)
            self._tell(line)
            return
        line.running -= 1
        if not line.running:
            del self._lines[key]

    def _tell(self, line: _Line) -> None:
        for place, ticket in enumerate(line.queue):
            ticket.tell(line.running + place)
