"""One segment of any kind of engine: prepared by `start`, driven by answers, ended by a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.engine.contract import Abort, AgentSnapshot, Answer, SegmentResult, Snapshot, Step
from gateway.engine.host import Host
from gateway.engine.tasks import Tasks, Work

Look: TypeAlias = Callable[[Sequence[str]], Sequence[AgentSnapshot]]
"""Shows the agents that run in a segment; told the effects in flight."""


def no_agents(_waiting: Sequence[str]) -> Sequence[AgentSnapshot]:
    """The `Look` of a segment without agents."""
    return ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A segment that has passed its checks: the work that gives its result, and a look at what runs in it."""

    work: Work[SegmentResult]
    look: Look = no_agents


Prepare: TypeAlias = Callable[[Host], Prepared]


class Segment:
    """An `Engine` around a work that gives the result.

    `prepare` checks the input and makes the work; it may raise EngineRefused, which comes out of `start`.
    The segment lets go of `prepare`, and so of the documents it started from, as soon as it has run.
    """

    def __init__(self, host: Host, prepare: Prepare) -> None:
        self._host = host
        self._prepare: Prepare | None = prepare
        self._tasks: Tasks[SegmentResult] | None = None
        self._look: Look = no_agents

    def start(self, now_ms: float) -> Step:
        """Checks the input and runs to the first effects. Raises EngineRefused (agent-engine 4.2)."""
        prepare, self._prepare = self._prepare, None
        if prepare is None:
            raise ValueError("a segment starts once")
        self._host.now_ms = now_ms
        prepared = prepare(self._host)
        self._look = prepared.look
        self._tasks = Tasks(prepared.work)
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

    def snapshot(self) -> Snapshot:
        """Where the segment stands, as of the last step; changes nothing, and costs nothing until it is asked
        for. What it holds stays as it is while the segment goes on. Raises ValueError before `start`."""
        if self._tasks is None:
            raise ValueError("the segment has not started")
        waiting = self._tasks.waiting()
        return Snapshot(
            waiting=waiting,
            suspended=self._host.suspended(),
            abort=self._host.abort,
            agents=tuple(self._look(waiting)),
        )

    def _step(self, tasks: Tasks[SegmentResult]) -> Step:
        effects = tasks.run()
        outcome = tasks.outcome
        if outcome is None:
            return Step(effects=effects)
        return Step(result=outcome.get())
