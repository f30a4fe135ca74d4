"""When a segment rolls over (agent-engine 18.2)."""

from __future__ import annotations

from gateway.engine.contract import YieldAfter


class Rollover:
    """Counts the steps and the time of one segment. Without limits it is never due."""

    def __init__(self, limits: YieldAfter | None, started_ms: float) -> None:
        self._limits = limits or YieldAfter()
        self._started_ms = started_ms
        self.steps = 0
        """Steps behind it that went on."""

    def count_step(self) -> None:
        """A step ended and the turn goes on."""
        self.steps += 1

    def due(self, now_ms: float) -> bool:
        """Whether the segment should end before its next step; never before its first."""
        if not self.steps:
            return False
        limits = self._limits
        if limits.steps is not None and self.steps >= limits.steps:
            return True
        return limits.ms is not None and now_ms - self._started_ms >= limits.ms
