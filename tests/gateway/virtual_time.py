"""An event loop whose clock jumps to the next timer when nothing else is ready.

A scenario of minutes takes milliseconds and its order is fixed. Only for code without real sockets: input
from the operating system is looked for, but never waited for.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

MAX_STEPS_WITHOUT_A_TIMER = 1000
"""A loop that has nothing to wait for but the outside world has hung."""

BOUND_S = 100_000.0
"""Virtual seconds that a whole scenario may take."""


class Deadlock(Exception):
    """Everything waits and no timer is set."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The clock starts at 1000 s."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._idle_steps = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float | None, found: bool) -> None:
        if found or seconds == 0:
            self._idle_steps = 0
            return
        if seconds is None:
            self._idle_steps += 1
            if self._idle_steps > MAX_STEPS_WITHOUT_A_TIMER:
                raise Deadlock("nothing is ready and no timer is set")
            return
        self._idle_steps = 0
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        # A thread's call_soon_threadsafe must get its chance when there is nothing else.
        ready = super().select(0.001 if timeout is None else 0)
        self._loop.jump(timeout, bool(ready))
        return ready


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end on a loop of its own."""

    async def bounded() -> Any:
        # Periodic timers would let a scenario that hangs run on for ever.
        async with asyncio.timeout(BOUND_S):
            return await main

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(bounded())


def virtual_time(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Turns an async test into one that runs in virtual time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> Any:
        return run_virtually(test(*arguments, **named))

    return run
