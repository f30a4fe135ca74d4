"""How many connections there may be, in all and for one session (a seat each).

A seat is held from before a connection is opened until it is closed for good, so the numbers hold for
processes and descriptors as well. Whoever comes when all are taken inherits the seat of a connection that
is being closed, if need be of one that is closed for it, and waits until that is gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from services.mcp_pool.failures import OverLimit

MAX_CONNECTIONS: Final = "WHIPPLETREE_MCP_MAX_CONNECTIONS"
MAX_PER_SESSION: Final = "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION"

Owner = tuple[str, str]
"""A tenant and a session of it."""


class Seat:
    """A place for one connection."""

    __slots__ = ("given_back", "heir", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.heir = False
        """Somebody waits for it."""
        self.given_back: asyncio.Future[None] | None = None
        """Set once its connection is being closed."""


class Seats:
    """All seats. `limit` in all, `per_session` for one owner."""

    def __init__(self, limit: int, per_session: int) -> None:
        self._limit = limit
        self._per_session = per_session
        self._total = 0
        self._owned: Counter[Owner] = Counter()
        self._closing: dict[Seat, None] = {}

    def __len__(self) -> int:
        """Seats that are taken or promised."""
        return self._total

    async def take(self, owner: Owner, evict: Callable[[Owner | None], bool]) -> Seat:
        """A seat. Raises OverLimit at once when there is none and none can be made.

        `evict` begins to close the connection that is idle for the longest time, of the given owner or of
        all, and calls `closing` with its seat; False when none is idle.
        """
        inherited = self._inherit(owner, evict)
        seat = Seat(owner)
        # Counted from now on, together with the one that goes: nobody else may count on that.
        self._total += 1
        self._owned[owner] += 1
        if inherited is not None:
            inherited.heir = True
            try:
                assert inherited.given_back is not None
                await asyncio.shield(inherited.given_back)
            except asyncio.CancelledError:
                inherited.heir = False
                self.give_back(seat)
                raise
        return seat

    def _inherit(self, owner: Owner, evict: Callable[[Owner | None], bool]) -> Seat | None:
        if self._owned[owner] >= self._per_session:
            scope, problem = owner, (MAX_PER_SESSION, self._per_session, "The session")
        elif self._total >= self._limit:
            scope, problem = None, (MAX_CONNECTIONS, self._limit, "The mcp-pool")
        else:
            return None
        found = self._leaving(scope)
        if found is None and evict(scope):
            found = self._leaving(scope)
        if found is None:
            name, value, who = problem
            raise OverLimit(f"{who} has {value} MCP connections, and none is idle ({name}={value}).")
        return found

    def _leaving(self, owner: Owner | None) -> Seat | None:
        for seat in self._closing:
            if not seat.heir and owner in (None, seat.owner):
                return seat
        return None

    def closing(self, seat: Seat) -> None:
        """Its connection is being closed: `give_back` follows."""
        if seat.given_back is None:
            seat.given_back = asyncio.get_running_loop().create_future()
            self._closing[seat] = None

    def give_back(self, seat: Seat) -> None:
        """Its connection is gone, or was never opened."""
        self._closing.pop(seat, None)
        self._total -= 1
        self._owned[seat.owner] -= 1
        if not self._owned[seat.owner]:
            del self._owned[seat.owner]
        if seat.given_back is not None and not seat.given_back.done():
            seat.given_back.set_result(None)
