"""Time that a store over several processes can trust: it goes on through changes of the wall clock.

Ages are counted on the clock since the machine's start, which all processes of a host share; the wall clock
is for what came from before that start.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """A point in time: wall clock, which start of the machine, and milliseconds since it."""

    wall_ms: int
    boot: str
    since_boot_ms: int

    def since(self, earlier: Moment) -> int:
        """Milliseconds from an earlier moment to this one; 0 where clocks say otherwise."""
        if self.boot and self.boot == earlier.boot:
            return max(0, self.since_boot_ms - earlier.since_boot_ms)
        return max(0, self.wall_ms - earlier.wall_ms)

    @property
    def day(self) -> str:
        """The UTC day, as in 2030-01-31."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.wall_ms / 1000))


class HostClock:
    """The host's clocks."""

    def __init__(self) -> None:
        try:
            self._boot = _BOOT_ID.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            self._boot = ""

    def now(self) -> Moment:
        """This moment."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return Moment(time.time_ns() // 10**6, self._boot, time.clock_gettime_ns(clock) // 10**6)
