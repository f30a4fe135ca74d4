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


class Holds:
    """The effects of one run that wait for `effect.resolved`, and outcomes that came before they waited."""

    def __init__(self, signal: AbortSignal) -> None:
        self._buffered: dict[str, Resolution] = {}
        self._waiting: dict[str, tuple[Callable[[Resolution | None], None], asyncio.TimerHandle]] = {}
        self._forget = signal.listen(self._aborted)
        self._ended = False

    def resolved(self, effect_id: str, resolution: Resolution) -> None:
        """An outcome arrived."""
        if effect_id in self._waiting:
            self._end(effect_id, resolution)
        elif not self._ended and len(self._buffered) < MAX_BUFFERED:
            self._buffered[effect_id] = resolution

    def wait(self, effect_id: str, seconds: float, done: Callable[[Resolution | None], None]) -> None:
        """Calls `done` once: with the outcome (at once when it is here already), or with None after
        `seconds` or when the run aborts."""
        buffered = self._buffered.pop(effect_id, None)
        if buffered is not None:
            done(buffered)
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._end, effect_id, None)
        self._waiting[effect_id] = (done, timer)

    def close(self) -> None:
        """The run has ended: nobody waits, and what comes is dropped."""
        self._ended = True
        self._forget()
        self._buffered.clear()
        for effect_id in list(self._waiting):
            self._end(effect_id, None)

    def _aborted(self, abort: Abort) -> None:
        for effect_id in list(self._waiting):
            self._end(effect_id, None)

    def _end(self, effect_id: str, resolution: Resolution | None) -> None:
        done, timer = self._waiting.pop(effect_id)
        timer.cancel()
        done(resolution)
