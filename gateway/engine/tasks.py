"""Work that runs side by side without threads, timers or asyncio.

A piece of work is a generator. It yields a request and is resumed with what came of it: `Ask` one effect,
run other works `Together`, run one `Within`, or let the others go first (`Turn`). The order in which works run
depends on nothing but the order of requests and answers, so a segment that is run again does the same again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from gateway.engine.contract import Answer, EffectRequest
from gateway.engine.failures import WorkFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the host for an effect; resumed with its `Answer`."""

    effect: EffectRequest


@dataclass(frozen=True, slots=True)
class Together:
    """Start these works in order and wait for all; resumed with a list of `Settled`.

    They start after everything that is ready now or, `at_once`, before it: as if each were called here.
    """

    works: Sequence[Generator[Any, Any, Any]]
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Within:
    """Run this work and go on with its value; its failure is raised where this was asked for.

    As `yield from` with a `Turn` after it, for works that nest as deep as a document does: neither Python's
    stack nor the time that an answer takes to reach the innermost work grows with the depth.
    """

    work: Generator[Any, Any, Any]


class Turn:
    """Go on after everything that is ready now; resumed with None."""


TURN: Final = Turn()

Request: TypeAlias = Ask | Together | Within | Turn
Work: TypeAlias = Generator[Request, Any, T]


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """How a work ended: `failure`, or `value` when that is None."""

    value: T | None
    failure: WorkFailed | None = None

    def get(self) -> T:
        """The value. Raises the failure."""
        if self.failure is not None:
            raise self.failure
        return self.value  # type: ignore[return-value]


def together(works: Sequence[Work[T]]) -> Work[list[Settled[T]]]:
    """Runs the works side by side; never fails itself."""
    if not works:
        return []
    settled: list[Settled[T]] = yield Together(works)
    return settled


class _Group:
    __slots__ = ("left", "parent", "results")

    def __init__(self, parent: _Task, size: int) -> None:
        self.parent = parent
        self.results: list[Any] = [None] * size
        self.left = size


class _Task:
    __slots__ = ("above", "group", "index", "work")

    def __init__(self, work: Work[Any], group: _Group | None, index: int) -> None:
        self.work = work
        self.above: list[Work[Any]] = []
        self.group = group
        self.index = index


class Tasks(Generic[T]):
    """Runs one root work and everything it starts.

    A `WorkFailed` ends the work that raised it; any other exception is a defect and comes out of `run`.
    """

    def __init__(self, root: Work[T]) -> None:
        self._ready: deque[tuple[_Task, Any]] = deque([(_Task(root, None, 0), None)])
        self._waiting: dict[str, _Task] = {}
        self._repeated: dict[str, deque[_Task]] = {}
        self._asked: list[EffectRequest] = []
        self.outcome: Settled[T] | None = None

    def answer(self, effect_id: str, answer: Answer) -> None:
        """Hands an answer to the work that has waited for it longest. Raises ValueError when none does."""
        task = self._waiting.pop(effect_id, None)
        if task is None:
            raise ValueError(f"effect {effect_id} is not waiting for an answer")
        repeated = self._repeated.get(effect_id)
        if repeated is not None:
            self._waiting[effect_id] = repeated.popleft()
            if not repeated:
                del self._repeated[effect_id]
        self._ready.append((task, answer))

    def waiting(self) -> tuple[str, ...]:
        """The effects in flight, in the order in which they were asked for."""
        return tuple(self._waiting)

    def run(self) -> tuple[EffectRequest, ...]:
        """Runs until every work waits or the root has ended; returns the effects asked for, in order."""
        ready = self._ready
        while ready:
            task, value = ready.popleft()
            self._resume(task, value)
        asked, self._asked = tuple(self._asked), []
        return asked

    def _resume(self, task: _Task, value: Any) -> None:
        failure: WorkFailed | None = None
        while True:
            try:
                work = task.work
                request = work.send(value) if failure is None else work.throw(failure)
            except StopIteration as end:
                if not task.above:
                    self._settle(task, Settled(end.value))
                    return
                task.work = task.above.pop()
                self._ready.append((task, end.value))
                return
            except WorkFailed as failed:
                if not task.above:
                    self._settle(task, Settled(None, failed))
                    return
                task.work = task.above.pop()
                value, failure = None, failed
                continue
            if isinstance(request, Within):
                task.above.append(task.work)
                task.work = request.work
                value, failure = None, None
                continue
            if isinstance(request, Ask):
                self._ask(task, request.effect)
            elif isinstance(request, Together):
                group = _Group(task, len(request.works))
                works = [(_Task(work, group, i), None) for i, work in enumerate(request.works)]
                if request.at_once:
                    self._ready.extendleft(reversed(works))
                else:
                    self._ready.extend(works)
            else:
                self._ready.append((task, None))
            return

    def _ask(self, task: _Task, effect: EffectRequest) -> None:
        effect_id = effect.effect_id
        if effect_id in self._waiting:
            self._repeated.setdefault(effect_id, deque()).append(task)
        else:
            self._waiting[effect_id] = task
        self._asked.append(effect)

    def _settle(self, task: _Task, settled: Settled[Any]) -> None:
        group = task.group
        if group is None:
            self.outcome = settled
            return
        group.results[task.index] = settled
        group.left -= 1
        if not group.left:
            self._ready.append((group.parent, group.results))
