"""Drives one engine to its result: effects out in order, answers in as they come, aborts at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gateway.engine.contract import Abort, Answer, EffectRequest, Engine, SegmentResult, Step
from gateway.executors.contract import AbortSignal

Ask: TypeAlias = Callable[[EffectRequest, Callable[[Answer], None]], None]
"""Starts to resolve an effect and calls back once with its answer, at once or later."""


@dataclass(frozen=True, slots=True)
class _Answered:
    effect_id: str
    answer: Answer


class SegmentDriver:
    """Runs one engine. `ask` is called for every effect of a step, in order, before any answer is taken."""

    def __init__(self, engine: Engine, signal: AbortSignal, ask: Ask) -> None:
        self._engine = engine
        self._signal = signal
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[_Answered | Abort] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._in_flight = 0

    async def run(self) -> SegmentResult:
        """The segment's result. Raises EngineRefused.

        Returns only when no effect is in flight any more: a run's output is its last request.
        """
        if self._signal.abort is not None:
            self._engine.abort(self._signal.abort)
            forget = _nothing
        else:
            forget = self._signal.listen(self._arrived)
        try:
            step = self._engine.start(self._now_ms())
            while step.result is None:
                self._begin(step)
                step = self._take(await self._next())
            self._begin(step)
            while self._in_flight:
                await self._next()
            return step.result
        finally:
            forget()

    def _begin(self, step: Step) -> None:
        for effect in step.effects:
            self._in_flight += 1
            self._ask(effect, self._answer_to(effect.effect_id))

    def _answer_to(self, effect_id: str) -> Callable[[Answer], None]:
        return lambda answer: self._arrived(_Answered(effect_id, answer))

    def _arrived(self, item: _Answered | Abort) -> None:
        if isinstance(item, _Answered):
            self._in_flight -= 1
        self._inbox.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _next(self) -> _Answered | Abort:
        while not self._inbox:
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._inbox.popleft()

    def _take(self, item: _Answered | Abort) -> Step:
        if isinstance(item, Abort):
            return self._engine.abort(item)
        return self._engine.resolve(item.effect_id, item.answer, self._now_ms())

    def _now_ms(self) -> float:
        return self._loop.time() * 1000.0


def _nothing() -> None:
    return None
