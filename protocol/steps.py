"""Recursion without Python's stack.

A recursive function is written as a generator: where it would call itself it yields the generator of that
call and gets its value back. `run_steps` keeps the waiting generators in a list, so that nesting costs memory
and not stack, and a bound of our own says what is too deep: the same for everybody, wherever on the stack the
caller stands.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]
"""A recursive computation of a `T`; it yields the `Steps` of its calls and is sent their values."""

MAX_NESTING: Final = 10_000
"""Calls that may wait for each other: over ten for each level that a parsed document can have."""


class NestingError(RuntimeError):
    """A computation went deeper than `MAX_NESTING` calls; a schema that refers to itself never ends."""


def run_steps(first: Steps[T]) -> T:
    """The value of a computation. Raises `NestingError`, and whatever the computation raises."""
    waiting: list[Steps[Any]] = []
    current: Steps[Any] = first
    answer: Any = None
    while True:
        try:
            call = current.send(answer)
        except StopIteration as end:
            answer = end.value
            if not waiting:
                result: T = answer
                return result
            current = waiting.pop()
            continue
        if len(waiting) >= MAX_NESTING:
            raise NestingError
        waiting.append(current)
        current = call
        answer = None
