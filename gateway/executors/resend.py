"""How long and how often a call may be sent again (design 3.3): 10 s in all after the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.executors.contract import AbortSignal
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.status import CallFailed, Meaning
from gateway.executors.timings import ExecutorTimings

Clock = Callable[[], float]
T = TypeVar("T")


class Resends:
    """The attempts of one call: `run` makes them, `again` says after each failure whether another may follow."""

    __slots__ = ("_attempts", "_clock", "_faults", "_replicas", "_timings", "_until", "failed")

    def __init__(self, replicas: ReplicaSet, timings: ExecutorTimings, clock: Clock | None = None) -> None:
        self._replicas = replicas
        self._timings = timings
        self._clock = clock
        self._until: float | None = None
        self._attempts = 0
        self._faults = 0
        self.failed: list[Replica] = []
        """Where it failed so far; another replica is tried first."""

    async def run(
        self,
        attempt: Callable[[Replica], Awaitable[T]],
        *,
        choose: Callable[[], Replica | None],
        missing: str,
        may_resend: Callable[[CallFailed], bool],
        signal: AbortSignal,
    ) -> T:
        """The answer of the first attempt that has one. Raises what `attempt` raises.

        `choose` gives the replica of the next attempt, or None while there is none: `missing` is the text
        for that. A CallFailed is raised when `may_resend` refuses or there is no further attempt: the last.
        """
        while True:
            replica = choose()
            if replica is None:
                failure = CallFailed(Meaning.NOT_STARTED, missing)
            else:
                try:
                    return await attempt(replica)
                except CallFailed as failed:
                    failure = failed
                    if failure.meaning is Meaning.REFUSED_US:
                        replica.misconfigured(failure.text)
            if not may_resend(failure) or not await self.again(failure, replica, signal):
                raise failure

    async def again(self, failure: CallFailed, replica: Replica | None, signal: AbortSignal) -> bool:
        """Waits for the moment of another attempt; False when there is none, or the run is aborted.

        It says nothing about whether the call is of a kind that may be sent again.
        """
        now = (self._clock or asyncio.get_running_loop().time)()
        if self._until is None:
            self._until = now + self._timings.resend_for
        if failure.meaning is Meaning.FAULT:
            self._faults += 1
            if self._faults > self._timings.fault_resends:
                return False
        if replica is not None and replica not in self.failed:
            self.failed.append(replica)
        pauses = self._timings.resend_pauses
        pause = pauses[min(self._attempts, len(pauses) - 1)]
        self._attempts += 1
        if now >= self._until or signal.abort is not None:
            return False
        woken = asyncio.Event()
        forget_abort = signal.listen(lambda _: woken.set())
        forget_change = self._replicas.listen(woken.set)
        try:
            async with asyncio.timeout(min(pause, self._until - now)):
                await woken.wait()
        except TimeoutError:
            pass
        finally:
            forget_abort()
            forget_change()
        return signal.abort is None
