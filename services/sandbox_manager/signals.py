"""The abort of one operation: set once, heard by whoever works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

CANCEL = "cancel"
SHUTDOWN = "shutdown"
DEADLINE = "deadline"
OWNERSHIP_LOST = "ownership.lost"


class Signal:
    """Why an operation is to be stopped, once it is. All kinds kill a command alike (sandbox-manager 11.1)."""

    __slots__ = ("_kind", "_listeners")

    def __init__(self) -> None:
        self._kind: str | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def kind(self) -> str | None:
        """`cancel`, `shutdown`, `deadline` or `ownership.lost`; None while nothing was aborted."""
        return self._kind

    @property
    def aborted(self) -> bool:
        """The operation is to be stopped."""
        return self._kind is not None

    def set(self, kind: str) -> bool:
        """Aborts. The first kind stays; False when there was one already."""
        if self._kind is not None:
            return False
        self._kind = kind
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        return True

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` at the abort, at once if it has happened. Returns how to stop listening."""
        if self._kind is not None:
            listener()
            return lambda: None
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget

    async def wait(self) -> None:
        """Returns at the abort."""
        heard = asyncio.Event()
        forget = self.listen(heard.set)
        try:
            await heard.wait()
        finally:
            forget()
