"""What a service has in flight, what it counted and how long work took: the source of Admin.Stats."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from whippletree.v1 import admin_pb2

from services.common import metrics

Phase = Literal["queued", "accepted", "running"]

BOUNDS_MS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 6e5)
MAX_LISTED: Final = 1000
"""Entries of `StatsReply.in_flight`; a longer list helps nobody."""


class Work:
    """One piece of work in flight. `phase` may be set at any time; `end` is called once."""

    __slots__ = ("_began", "_book", "effect_id", "kind", "phase", "session_id")

    def __init__(self, book: WorkBook, kind: str, session_id: str, effect_id: str, phase: Phase) -> None:
        self._book = book
        self._began = book.clock()
        self.kind = kind
        self.session_id = session_id
        self.effect_id = effect_id
        self.phase: Phase = phase

    def age_ms(self) -> float:
        """Milliseconds since it arrived."""
        return (self._book.clock() - self._began) * 1000

    def end(self, outcome: str = "finished") -> None:
        """It is over; counts `<kind>.<outcome>` and its time."""
        self._book.end(self, outcome)


class WorkBook:
    """All work of one service. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.counts: dict[str, int] = {}
        self._in_flight: dict[int, Work] = {}
        self._latencies: dict[str, list[int]] = {}

    def begin(self, kind: str, session_id: str, effect_id: str = "", phase: Phase = "accepted") -> Work:
        """Notes work of a kind (`model`, `mcp`, `sandbox`, `discover`)."""
        work = Work(self, kind, session_id, effect_id, phase)
        self._in_flight[id(work)] = work
        return work

    def end(self, work: Work, outcome: str) -> None:
        """Takes work out; a second time changes nothing."""
        if self._in_flight.pop(id(work), None) is None:
            return
        self.passed(work.kind, outcome, work.age_ms())

    def passed(self, kind: str, outcome: str, ms: float) -> None:
        """Work that took `ms` milliseconds is over; for work that never waits, instead of begin and end."""
        self.count(f"{kind}.{outcome}")
        if metrics.current.enabled:
            _note(kind, outcome, ms)
        counts = self._latencies.get(kind)
        if counts is None:
            counts = self._latencies[kind] = [0] * (len(BOUNDS_MS) + 1)
        counts[bisect_left(BOUNDS_MS, ms)] += 1

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a counter."""
        self.counts[name] = self.counts.get(name, 0) + by

    def __len__(self) -> int:
        return len(self._in_flight)

    def kinds(self) -> dict[str, int]:
        """How much is in flight of each kind, 0 for one that was. May be asked in any thread."""
        running = Counter(work.kind for work in list(self._in_flight.values()))
        return dict.fromkeys(list(self._latencies), 0) | running

    def in_flight(self) -> list[admin_pb2.CallInFlight]:
        """The oldest work, at most 1,000 entries."""
        listed: list[admin_pb2.CallInFlight] = []
        for work in self._in_flight.values():
            if len(listed) == MAX_LISTED:
                break
            listed.append(
                admin_pb2.CallInFlight(
                    kind=work.kind,
                    session_id=work.session_id,
                    effect_id=work.effect_id,
                    phase=work.phase,
                    age_ms=int(work.age_ms()),
                )
            )
        return listed

    def latencies(self) -> list[admin_pb2.LatencyHistogram]:
        """One histogram per kind."""
        return [
            admin_pb2.LatencyHistogram(kind=kind, bounds_ms=BOUNDS_MS, counts=counts)
            for kind, counts in sorted(self._latencies.items())
        ]


_DURATIONS: Final = {
    "model": ("gen_ai.client.operation.duration", {"gen_ai.operation.name": "chat"}),
    "mcp": ("mcp.client.operation.duration", {"mcp.method.name": "tools/call"}),
    "sandbox": ("nylorun.sandbox.exec.duration", {}),
}
_FINE: Final = ("completed", "finished")


def _note(kind: str, outcome: str, ms: float) -> None:
    """The same time as a metric, for the kinds that have one."""
    name, attributes = _DURATIONS.get(kind, ("", {}))
    if name:
        failed = {} if outcome in _FINE else {"error.type": outcome}
        metrics.current.record(name, ms / 1000, {**attributes, **failed})
