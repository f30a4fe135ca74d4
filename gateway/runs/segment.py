"""Drives one engine to its result: effects out in order, answers in as they come, aborts at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from gateway.engine.contract import Abort, Answer, EffectRequest, Engine, SegmentResult, Step
from gateway.executors.contract import AbortSignal

Ask: TypeAlias = Callable[[EffectRequest, Callable[[Answer], None]], None]
"""Starts to resolve an effect and calls back once with its answer, at once or later."""


class _Answered(msgspec.Struct, frozen=True):
    effect_id: str
    answer: Answer


class _Line:
    """The asks for one effect id that are in flight: their answers go to the engine in order."""

    __slots__ = ("asked", "early", "told")

    def __init__(self) -> None:
        self.asked = 0
        self.told = 0
        self.early: dict[int, Answer] = {}

    def answered(self, number: int, answer: Answer) -> list[Answer]:
        """Takes the answer to one ask; what the engine may be told now."""
        self.early[number] = answer
        due: list[Answer] = []
        while self.told in self.early:
            due.append(self.early.pop(self.told))
            self.told += 1
        return due


class SegmentDriver:
    """Runs one engine. `ask` is called for every effect of a step, in order, before any answer is taken."""

    def __init__(self, engine: Engine, signal: AbortSignal, ask: Ask) -> None:
        self._engine = engine
        self._signal = signal
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._answers: deque[_Answered] = deque()
        self._lines: dict[str, _Line] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._in_flight = 0
        self._abort_told = False

    async def run(self) -> SegmentResult:
        """The segment's result. Raises EngineRefused.

        Returns only when no effect is in flight any more: a run's output is its last request.
        """
        forget = self._signal.listen(self._wake)
        try:
            if self._signal.abort is not None:
                self._tell_abort(self._signal.abort)
            step = self._engine.start(self._now_ms())
            while step.result is None:
                self._begin(step)
                step = await self._next_step()
            self._begin(step)
            while self._in_flight or self._answers:
                await self._next_answer()
            return step.result
        finally:
            forget()

    def _begin(self, step: Step) -> None:
        for effect in step.effects:
            self._in_flight += 1
            self._ask(effect, self._answer_to(effect.effect_id))

    def _answer_to(self, effect_id: str) -> Callable[[Answer], None]:
        line = self._lines.get(effect_id)
        if line is None:
            line = self._lines[effect_id] = _Line()
        number = line.asked
        line.asked += 1

        def answered(answer: Answer) -> None:
            self._in_flight -= 1
            for due in line.answered(number, answer):
                self._answers.append(_Answered(effect_id, due))
            if line.told == line.asked:
                del self._lines[effect_id]
            self._wake()

        return answered

    async def _next_step(self) -> Step:
        """The engine's next step: it hears of an abort before any answer that came with it."""
        while True:
            abort = self._signal.abort
            if abort is not None and not self._abort_told:
                return self._tell_abort(abort)
            if self._answers:
                answered = self._answers.popleft()
                return self._engine.resolve(answered.effect_id, answered.answer, self._now_ms())
            await self._woken()

    async def _next_answer(self) -> None:
        while not self._answers:
            await self._woken()
        self._answers.popleft()

    def _tell_abort(self, abort: Abort) -> Step:
        self._abort_told = True
        return self._engine.abort(abort)

    async def _woken(self) -> None:
        self._waiting = self._loop.create_future()
        await self._waiting

    def _wake(self, _: object = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000.0
