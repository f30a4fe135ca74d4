"""The abort of one operation: set once, heard by whoever works on it."""

from __future__ import annotations

from services.common.latch import Latch

CANCEL = "cancel"
SHUTDOWN = "shutdown"
DEADLINE = "deadline"
OWNERSHIP_LOST = "ownership.lost"


class Signal(Latch[str]):
    """Why an operation is to be stopped, once it is. All kinds kill a command alike (sandbox-manager 11.1)."""

    __slots__ = ()

    @property
    def kind(self) -> str | None:
        """`cancel`, `shutdown`, `deadline` or `ownership.lost`; None while nothing was aborted."""
        return self.value

    @property
    def aborted(self) -> bool:
        """The operation is to be stopped."""
        return self.value is not None
