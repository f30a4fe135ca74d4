"""The loop's time for servers that say much: one share a round, whatever their number."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from services.mcp_pool import limits as fixed


class Shares:
    """Who has more to say than one turn may take waits here for the next one. Used on one loop.

    A round is one turn or a few short ones; between rounds the loop belongs to everybody else.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._round: asyncio.TimerHandle | None = None

    def wait(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` when its turn has come; it takes one turn, and may wait again."""
        self._waiting.append(go_on)
        if self._round is None:
            self._next_round()

    def _next_round(self) -> None:
        self._round = asyncio.get_running_loop().call_later(fixed.PAUSE_SECONDS, self._take_turns)

    def _take_turns(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + fixed.TURN_SECONDS
        # Those that wait again meanwhile are for a later round.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if loop.time() > until:
                break
        self._round = None
        if self._waiting:
            self._next_round()
