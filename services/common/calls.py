"""An executor's table of work: the same effect id joins or gets the outcome, it never starts twice.

Keyed by tenant, session and effect id (design 3.3, with the limits of model-executor 5.5). The table only
decides; whoever asks acts on the answer. Nothing in it waits, so a decision is never half done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from services.common.late import Late

RunT = TypeVar("RunT")
OutcomeT = TypeVar("OutcomeT")

KEEP_S: Final = 30 * 60.0
MAX_KEPT: Final = 10_000
MAX_KEPT_BYTES: Final = 256 * 1024 * 1024


class WorkKey(NamedTuple):
    """Which work."""

    tenant_id: str
    session_id: str
    effect_id: str


class Fresh(msgspec.Struct, Generic[RunT], frozen=True):
    """Nobody had asked for it: the caller, and nobody else, starts this run."""

    run: RunT


class Joined(msgspec.Struct, Generic[RunT], frozen=True):
    """It is in flight: wait for it."""

    run: RunT


class Kept(msgspec.Struct, Generic[OutcomeT], frozen=True):
    """It has ended: here is what came of it."""

    outcome: OutcomeT


class Conflict(msgspec.Struct, frozen=True):
    """The id stands for another call."""


class Stale(msgspec.Struct, frozen=True):
    """A lease with a higher epoch owns it."""


def fingerprint_of(*parts: str | bool | None) -> int:
    """Tells calls under one effect id apart: a hash of 64 bits over all that makes a call.

    It is keyed by a secret of the process and holds in there only. A digest costs twice as much and would keep
    apart what nobody mixes up by accident: whoever sends calls holds the bearer, and spoils but its own.
    """
    return hash(parts)


Fingerprint: TypeAlias = int | bytes | Late[int]
"""Tells calls under one id apart. A late one is asked for by the end of its work, or by another call."""


class _Row(msgspec.Struct, Generic[RunT, OutcomeT]):
    fingerprint: Fingerprint
    epoch: int
    run: RunT | None
    outcome: OutcomeT | None = None
    settled_at: float = 0.0
    size: int = 0


class WorkTable(Generic[RunT, OutcomeT]):
    """Work in flight and outcomes of the last 30 minutes.

    Outcomes are dropped oldest first beyond 10,000 or 256 MiB; work in flight never is. An outcome that
    alone is larger than the byte limit is not kept. `clock` gives seconds and never goes back.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        keep_s: float = KEEP_S,
        max_kept: int = MAX_KEPT,
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._max_kept = max_kept
        self._max_kept_bytes = max_kept_bytes
        self._running: dict[WorkKey, _Row[RunT, OutcomeT]] = {}
        self._kept: dict[WorkKey, _Row[RunT, OutcomeT]] = {}
        self._kept_bytes = 0

    def enter(
        self, key: WorkKey, fingerprint: Fingerprint, make: Callable[[], RunT], epoch: int | None = None
    ) -> Fresh[RunT] | Joined[RunT] | Kept[OutcomeT] | Conflict | Stale:
        """Decides what a request is: new work, a join, a kept outcome or a refusal.

        `fingerprint` tells calls under one id apart (see fingerprint_of). With `epoch`, a
        lower one than the owner's is Stale and a higher one takes the ownership over; None asks nothing.
        """
        self._expire()
        row = self._running.get(key) or self._kept.get(key)
        if row is None:
            run = make()
            self._running[key] = _Row(fingerprint, epoch or 0, run)
            return Fresh(run)
        if _value_of(row.fingerprint) != _value_of(fingerprint):
            return Conflict()
        if epoch is not None:
            if epoch < row.epoch:
                return Stale()
            row.epoch = epoch
        if row.run is not None:
            return Joined(row.run)
        assert row.outcome is not None
        return Kept(row.outcome)

    def finish(self, key: WorkKey, outcome: OutcomeT, size: int) -> None:
        """The work has ended; `size` is the outcome's in bytes. Ignored for work the table doesn't have."""
        row = self._running.pop(key, None)
        if row is None or size > self._max_kept_bytes:
            return
        # What a late one is made of is not kept with the outcome.
        row.fingerprint = _value_of(row.fingerprint)
        row.run, row.outcome, row.settled_at, row.size = None, outcome, self._clock(), size
        self._kept[key] = row
        self._kept_bytes += size
        self._expire()

    def forget(self, key: WorkKey) -> None:
        """The work never began, or was given up without an outcome: a re-send starts it anew."""
        self._running.pop(key, None)

    def running(self, key: WorkKey) -> RunT | None:
        """The run in flight under a key."""
        row = self._running.get(key)
        return row.run if row is not None else None

    def kept(self, key: WorkKey) -> OutcomeT | None:
        """The outcome kept under a key."""
        self._expire()
        row = self._kept.get(key)
        return row.outcome if row is not None else None

    def runs(self) -> list[RunT]:
        """All runs in flight, oldest first."""
        return [row.run for row in self._running.values() if row.run is not None]

    @property
    def kept_count(self) -> int:
        """How many outcomes are kept."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Their size together."""
        return self._kept_bytes

    def _expire(self) -> None:
        old = self._clock() - self._keep_s
        while self._kept:
            key = next(iter(self._kept))
            row = self._kept[key]
            over = len(self._kept) > self._max_kept or self._kept_bytes > self._max_kept_bytes
            if row.settled_at > old and not over:
                return
            del self._kept[key]
            self._kept_bytes -= row.size


def _value_of(fingerprint: Fingerprint) -> int | bytes:
    return fingerprint.value if isinstance(fingerprint, Late) else fingerprint
