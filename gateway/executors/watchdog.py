"""Ends one RPC when a time has passed or the run was aborted, and remembers which of the two it was."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

Reason = Literal["late", "aborted"]


class Watchdog:
    """The timer of one call: one at a time, set anew whenever the peer said something."""

    __slots__ = ("_call", "_loop", "_timer", "reason")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.reason: Reason | None = None

    def arm(self, seconds: float) -> None:
        """Ends the call after so long."""
        self.disarm()
        self._timer = self._loop.call_later(seconds, self.stop, "late")

    def disarm(self) -> None:
        """Forgets the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self, reason: Reason) -> None:
        """Ends the call now."""
        if self.reason is None:
            self.reason = reason
            self._call.cancel()

    def was_cancelled_by_others(self) -> bool:
        """The task itself is being cancelled: what this watchdog did makes no difference."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
