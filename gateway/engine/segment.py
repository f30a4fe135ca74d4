"""One segment of any kind of engine: prepared by `start`, driven by answers, ended by a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gateway.engine.contract import Abort, Answer, SegmentResult, Step
from gateway.engine.host import Host
from gateway.engine.tasks import Tasks, Work

Prepare: TypeAlias = Callable[[Host], Work[SegmentResult]]


class Segment:
    """An `Engine` around a work that gives the result.

    `prepare` checks the input and makes the work; it may raise EngineRefused, which comes out of `start`.
    The segment lets go of `prepare`, and so of the documents it started from, as soon as it has run.
    """

    def __init__(self, host: Host, prepare: Prepare) -> None:
        self._host = host
        self._prepare: Prepare | None = prepare
        self._tasks: Tasks[SegmentResult] | None = None

    def start(self, now_ms: float) -> Step:
        """Checks the input and runs to the first effects. Raises EngineRefused (agent-engine 4.2)."""
        prepare, self._prepare = self._prepare, None
        if prepare is None:
            raise ValueError("a segment starts once")
        self._host.now_ms = now_ms
        self._tasks = Tasks(prepare(self._host))
        return self._step(self._tasks)

    def resolve(self, effect_id: str, answer: Answer, now_ms: float) -> Step:
        """Takes the answer to one effect. Raises ValueError for one that is not in flight."""
        if self._tasks is None:
            raise ValueError("the segment has not started")
        self._host.now_ms = now_ms
        self._tasks.answer(effect_id, answer)
        return self._step(self._tasks)

    def abort(self, abort: Abort) -> Step:
        """Aborts the run, at any time, also before `start`. The first abort wins (harness-api 5.4)."""
        if self._host.abort is None:
            self._host.abort = abort
        return Step()

    def _step(self, tasks: Tasks[SegmentResult]) -> Step:
        effects = tasks.run()
        outcome = tasks.outcome
        if outcome is None:
            return Step(effects=effects)
        return Step(result=outcome.get())
