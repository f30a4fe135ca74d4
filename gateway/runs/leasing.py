"""Asks core for work: exactly one lease is outstanding while work can be taken (harness-api 5.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.connection import CallEnd, Connection, Reply
from gateway.timing import Timing
from protocol.errors import HarnessApiError
from services.common import metrics
from services.common.logs import get_logger


class Leasing:
    """The lease requests of one connection.

    `granted` is called at once with each answer; `has_room` says whether another run may be held. Closed
    by `stop`, paused by `pause` (what is out is given up) and taken up again by `resume`.
    """

    def __init__(
        self,
        connection: Connection,
        timing: Timing,
        granted: Callable[[Reply], None],
        has_room: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._timing = timing
        self._granted = granted
        self._has_room = has_room
        self._outstanding: int | None = None
        self._asked_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        self._paused = True

    def resume(self) -> None:
        """Asks for work from now on."""
        self._paused = False
        self.ask()

    def pause(self) -> None:
        """Asks for no more work; an outstanding lease is aborted."""
        self._paused = True
        self._give_up()

    def stop(self) -> None:
        """Asks for no more work, for good."""
        self._stopped = True
        self._give_up()

    def ask(self) -> None:
        """Asks for a lease if none is outstanding and one may be."""
        if (
            self._stopped
            or self._paused
            or self._outstanding is not None
            or self._retry is not None
            or self._connection.closed
            or not self._has_room()
        ):
            return
        self._asked_at = asyncio.get_running_loop().time()
        self._outstanding = self._connection.call("lease", {}, self._answered, plain=True)

    def _answered(self, end: CallEnd) -> None:
        self._outstanding = None
        if isinstance(end, HarnessApiError):
            if not self._stopped and not self._connection.closed:
                get_logger().warning("harness lease failed", error=end.message)
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(self._timing.lease_retry, self._ask_again)
            return
        waited_s = asyncio.get_running_loop().time() - self._asked_at
        metrics.current.record("nylorun.harness.lease.wait.duration", waited_s)
        self._granted(end)
        self.ask()

    def _ask_again(self) -> None:
        self._retry = None
        self.ask()

    def _give_up(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._outstanding is not None:
            self._connection.give_up(self._outstanding)
            self._outstanding = None
