"""Why a command is ended before its own end, and how that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from services.common.latch import Latch
from services.sandbox_manager.signals import Signal


@dataclass(frozen=True, slots=True)
class Kill:
    """The exit code of a killed command, and a line for whoever reads its output, without a line end."""

    exit_code: int
    note: str | None = None


TIMED_OUT: Final = Kill(124)
ABORTED: Final = Kill(130)
"""As shells have them for a time limit and for an interrupt."""
KILLED: Final = 137
"""The exit code of a command that was killed for what it did."""


@contextmanager
def killing(
    kill: Callable[[Kill], None], signal: Signal, timeout_ms: float, other: Latch[Kill] | None = None
) -> Iterator[None]:
    """Calls `kill` at the abort, at the time limit and when `other` is set, as long as the block runs."""
    forget = [signal.listen(lambda _: kill(ABORTED))]
    if other is not None:
        forget.append(other.listen(kill))
    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, kill, TIMED_OUT)
    try:
        yield
    finally:
        timer.cancel()
        for undo in forget:
            undo()
