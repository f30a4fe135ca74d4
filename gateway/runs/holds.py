"""Waiting for Actions inside a run (harness-api 5.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.executors.contract import Abort, AbortSignal
from protocol.jsjson import JsonValue

MAX_BUFFERED: Final = 10_000
"""Outcomes of one run that may wait to be asked for; a later one is dropped, and core offers it again."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """An outcome that core sent on its own: {value, statePatch?}."""

    outcome: Mapping[str, JsonValue]
    plain: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    """One effect that is waited for; a flow may wait for one id more than once."""

    effect_id: str
    done: Callable[[Resolution | None], None]
    timer: asyncio.TimerHandle | None = None


class Holds:
    """The effects of one run that wait for `effect.resolved`, and outcomes that came before they waited."""

    def __init__(self, signal: AbortSignal) -> None:
        self._buffered: dict[str, Resolution] = {}
        self._waiting: dict[str, list[_Waiter]] = {}
        self._forget = signal.listen(self._aborted)
        self._ended = False

    def resolved(self, effect_id: str, resolution: Resolution) -> None:
        """An outcome arrived."""
        waiters = self._waiting.get(effect_id)
        if waiters is not None:
            self._end_all(waiters, resolution)
        elif not self._ended and len(self._buffered) < MAX_BUFFERED:
            self._buffered[effect_id] = resolution

    def wait(self, effect_id: str, seconds: float, done: Callable[[Resolution | None], None]) -> None:
        """Calls `done` once: with the outcome (at once when it is here already), or with None after
        `seconds` or when the run aborts."""
        buffered = self._buffered.pop(effect_id, None)
        if buffered is not None:
            done(buffered)
            return
        waiter = _Waiter(effect_id, done)
        waiter.timer = asyncio.get_running_loop().call_later(seconds, self._end, waiter, None)
        self._waiting.setdefault(effect_id, []).append(waiter)

    def close(self) -> None:
        """The run has ended: nobody waits, and what comes is dropped."""
        self._ended = True
        self._forget()
        self._buffered.clear()
        self._give_up()

    def _aborted(self, abort: Abort) -> None:
        self._give_up()

    def _give_up(self) -> None:
        for waiters in list(self._waiting.values()):
            self._end_all(waiters, None)

    def _end_all(self, waiters: list[_Waiter], resolution: Resolution | None) -> None:
        for waiter in list(waiters):
            self._end(waiter, resolution)

    def _end(self, waiter: _Waiter, resolution: Resolution | None) -> None:
        waiters = self._waiting[waiter.effect_id]
        waiters.remove(waiter)
        if not waiters:
            del self._waiting[waiter.effect_id]
        if waiter.timer is not None:
            waiter.timer.cancel()
        waiter.done(resolution)
