"""Values that are made when somebody first asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Generic[T]):
    """A value that `make` gives; it is called once, and let go then with all it holds."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._value: T

    @property
    def value(self) -> T:
        """The value. Raises what `make` raises, each time anew."""
        if self._make is not None:
            self._value = self._make()
            self._make = None
        return self._value
