"""A value that is set once and heard by everybody: how an abort reaches whoever works on what is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latch(Generic[T]):
    """Set once; the first value stays. Listeners are called at once and in order, in the setter's turn."""

    __slots__ = ("_listeners", "_value")

    def __init__(self) -> None:
        self._value: T | None = None
        self._listeners: list[Callable[[T], None]] = []

    @property
    def value(self) -> T | None:
        """What was set, or None."""
        return self._value

    def set(self, value: T) -> bool:
        """Sets it; False when it was set before."""
        if self._value is not None:
            return False
        self._value = value
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(value)
        return True

    def listen(self, listener: Callable[[T], None]) -> Callable[[], None]:
        """Calls `listener` with the value (at once if it is set); returns how to stop listening."""
        if self._value is not None:
            listener(self._value)
            return _nothing
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget

    async def wait(self) -> T:
        """Waits for the value."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def arrived(value: T) -> None:
            if not future.done():
                future.set_result(value)

        forget = self.listen(arrived)
        try:
            return await future
        finally:
            forget()


def _nothing() -> None:
    return None
