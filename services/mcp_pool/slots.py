"""How many servers may be opening at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class OpeningSlots:
    """At most `limit` openings at a time; one that lasts longer than `hold` seconds stops counting.

    Starting processes is heavy and the limit of their first answer runs meanwhile; waiting for a server
    that says nothing is light, and must not keep the servers of other sessions from being opened.
    """

    def __init__(self, limit: int, hold: float) -> None:
        self._free = asyncio.Semaphore(limit)
        self._hold = hold

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a slot, first come first served."""
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._hold, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()
