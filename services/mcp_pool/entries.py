"""What the pool holds under a key: a connection, or the opening of one that calls share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.mcp_pool.connection import Connecting, Connection
from services.mcp_pool.session import PoolKey

if TYPE_CHECKING:
    from services.mcp_pool.tools_watch import Watched


@dataclass(slots=True, eq=False)
class Entry:
    """A pooled connection. `active` counts calls and preparations that use it; `last_used` is in seconds."""

    key: PoolKey
    connection: Connection
    last_used: float
    active: int = 0
    retired: bool = False
    """Out of the pool: closed when nobody uses it any more."""
    discarded: bool = False
    """Its closing has begun."""
    watched: Watched | None = None
    """What is known of its tools."""
    gone: asyncio.Future[None] | None = None
    """For whoever waits until it is closed."""

    @property
    def lendable(self) -> bool:
        """A call may be made on it."""
        return self.connection.usable and not self.discarded


@dataclass(slots=True, eq=False)
class Opening:
    """A connection that calls of a key wait for together: first for its seat, then for itself.

    It is opened once the first of its calls has started; without calls before that it is given up.
    """

    key: PoolKey
    seating: asyncio.Task[Connecting]
    begin: Callable[[Opening], asyncio.Task[Entry]]
    users: int = 0
    opening: asyncio.Task[Entry] | None = None
    entry: Entry | None = None
    """What was opened, in use until the last of its calls has taken it: nobody may close it before."""

    def begun(self) -> asyncio.Task[Entry]:
        """The task that opens it, started by the first who asks. Its seat must be there."""
        if self.opening is None:
            self.opening = self.begin(self)
        return self.opening
