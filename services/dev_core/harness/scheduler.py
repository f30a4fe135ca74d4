"""Sessions that have something to run, harnesses that wait for work, and the runs between (harness-api 8.2).

A session is offered by its id, and its lease is taken when a harness is there to run it: a core without a
harness keeps a queue and nothing else, where one that took leases first would have to give them back and
take them again every few seconds. What is offered is decided by the database at that moment; the queue is
only a list of sessions to ask about.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from services.common.logs import error_text, get_logger
from services.dev_core.clock import new_run_id, now_ms
from services.dev_core.effects.actions import resolved_message
from services.dev_core.harness.connection import Connection
from services.dev_core.harness.run import Run
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed
from services.dev_core.turns import lease, settle
from services.dev_core.turns.lease import Taken
from services.dev_core.turns.settle import Abort, AbortKind

STORE_RETRY_S: Final = 1.0
"""After the database refused to take a lease."""
CANCELLED: Final = "Turn cancelled"
STOPPING: Final = "The core is stopping"
PAST_DEADLINE: Final = "The advance ran past its deadline"
LOST: Final = "Ownership lost"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Milliseconds: length of a lease, deadline of an advance, what a run may take to end after an abort."""

    lease_ms: int
    deadline_ms: int
    abort_grace_ms: int

    @property
    def renew_every_ms(self) -> int:
        """How often a harness renews."""
        return max(10, self.lease_ms // 3)


class RunMaker(Protocol):
    """Makes a run of a lease that was taken."""

    async def __call__(
        self, taken: Taken, run_id: str, connection: Connection, lease_until: float
    ) -> Run | None:
        """None when the turn can't be offered (it was settled then)."""


@dataclass(slots=True, eq=False)
class Waiter:
    """An outstanding lease request; `leased` is called with its run."""

    connection: Connection
    leased: Callable[[Run], None]
    done: bool = False
    """It has its run, or the requester gave up."""


class Scheduler:
    """Matches sessions with harnesses, in the order both came, and owns the runs' timers."""

    def __init__(self, store: Store, times: LeaseTimes, *, model_recovers: bool, make_run: RunMaker) -> None:
        self._store = store
        self.times: Final = times
        self._model_recovers = model_recovers
        self._make_run = make_run
        self._loop = asyncio.get_running_loop()
        self._offers: dict[str, None] = {}
        self._waiters: deque[Waiter] = deque()
        self._runs: dict[str, Run] = {}
        self._run_of: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lapses: dict[str, asyncio.TimerHandle] = {}
        self.connections: dict[str, Connection] = {}
        self._stopping = False
        self._run_ended = asyncio.Event()

    # What the rest of the core calls

    async def start(self) -> None:
        """Offers what an earlier process left runnable, and waits for the leases it left."""
        for session_id in await self._store.read(lease.runnable):
            self.offer(session_id)
        now = now_ms()
        for session_id, epoch, until_ms in await self._store.read(lease.leased):
            left_ms = min(max(until_ms - now, 0), self.times.lease_ms)
            self._lapse_at(session_id, epoch, self._loop.time() + left_ms / 1000)

    def offer(self, session_id: str) -> None:
        """The session has something to run; a session that a run still holds is offered after its end."""
        run = self._run_of.get(session_id)
        if run is not None:
            run.again = True
            return
        self._offers[session_id] = None
        self._pump()

    def withdraw(self, session_id: str) -> None:
        """The session's turn was cancelled: nothing is to be run."""
        self._offers.pop(session_id, None)

    def run_of_session(self, session_id: str) -> Run | None:
        """The run that holds the session and has not ended."""
        run = self._run_of.get(session_id)
        return None if run is None or run.ended else run

    def counts(self) -> dict[str, int]:
        """Connections, waiting leases, queued offers, held runs."""
        return {
            "harnesses": sum(connection.said_hello for connection in self.connections.values()),
            "waitingLeases": len(self._waiters),
            "queuedSessions": len(self._offers),
            "heldRuns": len(self._runs),
        }

    def resolved(self, session_id: str, effect_id: str, outcome: str) -> None:
        """Tells the run that holds the session the outcome of a pending effect."""
        run = self.run_of_session(session_id)
        if run is not None:
            params = resolved_message(run.id, effect_id, outcome)
            run.connection.channel.message("effect.resolved", params)

    def cancel_run(self, session_id: str) -> None:
        """After a person's cancel was committed."""
        self.withdraw(session_id)
        run = self.run_of_session(session_id)
        if run is not None:
            self.abort(run, "cancel", CANCELLED)

    # Leases

    def wait(self, connection: Connection, leased: Callable[[Run], None]) -> Waiter:
        """Queues a lease request."""
        waiter = Waiter(connection, leased)
        self._waiters.append(waiter)
        self._pump()
        return waiter

    def stop_waiting(self, waiter: Waiter) -> bool:
        """The requester gave up, or its connection closed; False when it had its run before."""
        if waiter.done:
            return False
        waiter.done = True
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return True

    def _pump(self) -> None:
        while self._waiters and self._offers and not self._stopping:
            session_id = next(iter(self._offers))
            del self._offers[session_id]
            self._spawn(self._grant(self._waiters.popleft(), session_id))

    async def _grant(self, waiter: Waiter, session_id: str) -> None:
        run_id = new_run_id()
        owner = waiter.connection.owner
        now = now_ms()
        try:
            taken = await self._store.write(
                partial(
                    lease.take,
                    session_id=session_id,
                    owner=owner,
                    run_id=run_id,
                    until_ms=now + self.times.lease_ms,
                    now_ms=now,
                )
            )
        except StoreFailed as error:
            get_logger().error("lease_not_taken", sessionId=session_id, error=error_text(error))
            self._back(waiter)
            self._loop.call_later(STORE_RETRY_S, self.offer, session_id)
            return
        if taken is None:
            self._back(waiter)
            return
        until = self._loop.time() + self.times.lease_ms / 1000
        try:
            run = None if waiter.done else await self._make_run(taken, run_id, waiter.connection, until)
        except StoreFailed as error:
            get_logger().error("run_not_made", sessionId=session_id, error=error_text(error))
            self._lapse_at(session_id, taken.epoch, until)
            self._back(waiter)
            return
        if run is None and not waiter.done:
            self._back(waiter)
        elif run is None or waiter.done or self._stopping:
            await self._give_back(session_id, taken.epoch, owner)
        else:
            self._hold(run)
            waiter.done = True
            waiter.leased(run)

    def _back(self, waiter: Waiter) -> None:
        if not waiter.done:
            self._waiters.appendleft(waiter)
            self._pump()

    async def _give_back(self, session_id: str, epoch: int, owner: str) -> None:
        try:
            offer = await self._store.write(
                partial(lease.give_back, session_id=session_id, epoch=epoch, owner=owner, now_ms=now_ms())
            )
        except StoreFailed as error:
            get_logger().error("lease_not_given_back", sessionId=session_id, error=error_text(error))
            self._lapse_at(session_id, epoch, self._loop.time() + self.times.lease_ms / 1000)
            return
        if offer:
            self.offer(session_id)

    # Runs

    def _hold(self, run: Run) -> None:
        self._runs[run.id] = run
        self._run_of[run.session_id] = run
        run.connection.runs[run.id] = run
        deadline = self._loop.call_later(
            self.times.deadline_ms / 1000, self.abort, run, "deadline", PAST_DEADLINE
        )
        run.timers.append(deadline)
        self._lapse_at(run.session_id, run.held.epoch, run.lease_until)

    def abort(self, run: Run, kind: AbortKind, message: str) -> None:
        """Aborts a run's advance; the first abort counts. Its requests are served until it ends."""
        if run.ended or run.abort is not None:
            return
        run.abort = Abort(kind, message)
        run.connection.channel.message("cancel", {"runId": run.id, "reason": kind, "message": message})
        grace = self._loop.call_later(self.times.abort_grace_ms / 1000, self._give_up, run)
        run.timers.append(grace)

    def _give_up(self, run: Run) -> None:
        if not run.ended and run.abort is not None:
            self._spawn(self._abandon(run, run.abort))

    async def _abandon(self, run: Run, abort: Abort) -> None:
        get_logger().warning("run_abandoned", runId=run.id, sessionId=run.session_id, reason=abort.kind)
        offer = await self._store.write(partial(settle.abandon, run=run.held, abort=abort, now_ms=now_ms()))
        self.end(run, offer=offer)

    def end(self, run: Run, *, offer: bool) -> None:
        """The run is over and its session released; `offer`: it has something to run."""
        if self._forget(run):
            self._forget_lapse(run.session_id)
            if offer or run.again:
                self.offer(run.session_id)

    def lose(self, run: Run) -> None:
        """The run is gone and its session stays leased: nothing is settled, the lease lapses."""
        self._forget(run)

    def _forget(self, run: Run) -> bool:
        run.over = True
        run.stop_timers()
        self._runs.pop(run.id, None)
        run.connection.runs.pop(run.id, None)
        self._run_ended.set()
        if self._run_of.get(run.session_id) is not run:
            return False
        del self._run_of[run.session_id]
        return True

    def renewed(self, run: Run, until: float) -> None:
        """The lease was extended."""
        run.lease_until = until

    def _lapse_at(self, session_id: str, epoch: int, when: float) -> None:
        self._forget_lapse(session_id)
        self._lapses[session_id] = self._loop.call_at(when, self._check_lapse, session_id, epoch)

    def _forget_lapse(self, session_id: str) -> None:
        timer = self._lapses.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    def _check_lapse(self, session_id: str, epoch: int) -> None:
        self._lapses.pop(session_id, None)
        run = self._run_of.get(session_id)
        if run is not None and run.held.epoch == epoch and run.lease_until > self._loop.time():
            self._lapse_at(session_id, epoch, run.lease_until)
            return
        self._spawn(self._take_over(session_id, epoch))

    async def _take_over(self, session_id: str, epoch: int) -> None:
        try:
            offer = await self._store.write(
                partial(
                    lease.take_over,
                    session_id=session_id,
                    epoch=epoch,
                    model_recovers=self._model_recovers,
                    now_ms=now_ms(),
                )
            )
        except StoreFailed as error:
            get_logger().error("lease_not_taken_over", sessionId=session_id, error=error_text(error))
            self._lapse_at(session_id, epoch, self._loop.time() + STORE_RETRY_S)
            return
        get_logger().warning("lease_lapsed", sessionId=session_id, epoch=epoch)
        run = self._run_of.get(session_id)
        if run is not None and run.held.epoch == epoch:
            self.abort(run, "ownership.lost", LOST)
            offer = offer or run.again
            del self._run_of[session_id]
        if offer:
            self.offer(session_id)

    # Connections and the end

    def attach(self, connection: Connection) -> None:
        """A harness connected; they are asked in the order they came."""
        self.connections[connection.owner] = connection

    def detach(self, connection: Connection) -> None:
        """A connection closed: nothing is settled or released, leases lapse (harness-api 8.4)."""
        self.connections.pop(connection.owner, None)
        for run in list(connection.runs.values()):
            self.lose(run)

    async def stop(self, wait_s: float) -> None:
        """Takes no more leases, gives runs back (abort `shutdown`), and waits for them."""
        self._stopping = True
        for run in list(self._runs.values()):
            self.abort(run, "shutdown", STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._runs:
                    self._run_ended.clear()
                    await self._run_ended.wait()
        for timer in self._lapses.values():
            timer.cancel()
        for run in list(self._runs.values()):
            run.stop_timers()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=wait_s)
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreFailed as error:
            get_logger().error("store_failed", error=error_text(error))
