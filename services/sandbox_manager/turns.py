"""The queue of a workspace: one operation at a time, in the order of arrival (sandbox-manager 6.2)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Waiting = Callable[[int], None]
"""Hears how many operations stand before a waiting one: at once, and whenever that changes."""


class _Ticket:
    __slots__ = ("came", "waiting")

    def __init__(self, waiting: Waiting | None) -> None:
        self.came = asyncio.Event()
        self.waiting = waiting

    def tell(self, position: int) -> None:
        if self.waiting is not None:
            self.waiting(position)


class Turns:
    """First come, first served. An operation that fails or is cancelled never holds the others up."""

    def __init__(self) -> None:
        self._line: deque[_Ticket] = deque()

    def __len__(self) -> int:
        return len(self._line)

    @asynccontextmanager
    async def turn(self, waiting: Waiting | None = None) -> AsyncIterator[None]:
        """Holds the turn inside the block. `waiting` is only called when there is somebody before."""
        ticket = _Ticket(waiting)
        self._line.append(ticket)
        try:
            if self._line[0] is not ticket:
                ticket.tell(len(self._line) - 1)
                await ticket.came.wait()
            yield
        finally:
            self._leave(ticket)

    def _leave(self, ticket: _Ticket) -> None:
        held = self._line[0] is ticket
        self._line.remove(ticket)
        if held and self._line:
            self._line[0].came.set()
        for position, other in enumerate(self._line):
            if position > 0:
                other.tell(position)
