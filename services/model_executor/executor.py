"""Runs model calls, each effect id once: a plain class, usable in one process with its caller."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from whippletree.v1 import common_pb2

from services.common.calls import (
    Conflict,
    Fresh,
    Joined,
    Kept,
    Stale,
    WorkKey,
    WorkTable,
    fingerprint_of,
)
from services.common.logs import get_logger
from services.common.work import WorkBook
from services.model_executor.outcomes import invalid_request
from services.model_executor.routes import (
    CONFLICT_TEXT,
    STALE_TEXT,
    ClosingRoute,
    FixtureRoute,
    ModelCall,
    Pending,
    PlacedRoute,
    RemoteRoute,
    Route,
    Settled,
    StoppingRoute,
)

CancelState = Literal["not here", "stopping", "finished"]


class CallAborted(Exception):
    """The call was stopped. `kind` is a value of AbortKind."""

    def __init__(self, kind: int) -> None:
        super().__init__("The call was stopped.")
        self.kind = kind


class Draining(Exception):
    """The executor takes no new calls; nothing was started."""


class Run:
    """A call in flight. Its task belongs to the executor, so a lost connection doesn't end it."""

    __slots__ = ("_result", "key", "task", "waiting", "with_callers")

    def __init__(self) -> None:
        self._result: asyncio.Future[Settled] | None = None
        self.task: asyncio.Task[None] | None = None
        self.key: WorkKey | None = None
        self.waiting = 0
        self.with_callers = False
        """It is stopped when nobody waits for it any more: it lives on elsewhere."""

    @property
    def result(self) -> asyncio.Future[Settled]:
        """Its outcome; made when somebody must wait for it."""
        if self._result is None:
            self._result = asyncio.get_running_loop().create_future()
            self._result.add_done_callback(_look_at)
        return self._result


def _look_at(future: asyncio.Future[Settled]) -> None:
    """An abort that nobody waits for any more is no news."""
    if not future.cancelled():
        future.exception()


class ModelExecutor:
    """Answers model calls by the configured route, or by the fixture when a call asks for it.

    `sleep` and `clock` (seconds) are injected for tests. Calls that are in flight or ended in the last
    30 minutes are joined by tenant, session and effect id (model-executor 5.5).
    """

    def __init__(
        self,
        route: Route,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        table: WorkTable[Run, str] | None = None,
    ) -> None:
        self.route = route
        self.work = WorkBook(clock)
        self._fixture = FixtureRoute()
        self._sleep = sleep
        self._table: WorkTable[Run, str] = table or WorkTable(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    def limit_ms(self, call: ModelCall) -> int:
        """The call has ended by then, in milliseconds from its start."""
        return self._route_of(call).limit_ms

    async def call(self, call: ModelCall) -> str:
        """The outcome's JSON text.

        Raises CallAborted when the call was cancelled, and Draining. Cancelling the caller does not stop
        the call: `cancel` does.
        """
        entered = self.enter(call)
        return entered if isinstance(entered, str) else (await self.settled(entered)).outcome

    def enter(self, call: ModelCall) -> str | Run:
        """Starts or joins a call: the outcome when it is there, else the run to wait for. Raises Draining."""
        key = WorkKey(call.tenant_id, call.session_id, call.effect_id)
        if self._draining and self._table.running(key) is None and self._table.kept(key) is None:
            raise Draining
        alike = fingerprint_of(call.turn_id, call.agent_id, call.invocation_id, call.fixture, call.text)
        match self._table.enter(key, alike, Run, call.epoch):
            case Fresh(run):
                return self._begin(key, call, run)
            case Joined(run):
                self._joined(call, "running")
                self.renew(call.tenant_id, call.session_id, call.token)
                return run
            case Kept(outcome):
                self._joined(call, "finished")
                return outcome
            case Conflict():
                return invalid_request(CONFLICT_TEXT)
            case Stale():
                return invalid_request(STALE_TEXT)

    async def settled(self, run: Run) -> Settled:
        """Waits for a run. Raises CallAborted.

        The last who stops waiting for a call that also lives elsewhere ends it here: its connection is
        closed at once, and a re-sent call joins it there (model-executor 12).
        """
        run.waiting += 1
        try:
            return await asyncio.shield(run.result)
        finally:
            run.waiting -= 1
            if run.with_callers and run.waiting == 0 and not run.result.done() and run.key is not None:
                self.cancel(run.key, common_pb2.ABORT_KIND_SHUTDOWN)

    async def stop(self, key: WorkKey, kind: int, token: str | None) -> CancelState:
        """`cancel`, and the same at the gate when that is where calls go. At most 2 s; never fails."""
        state = self.cancel(key, kind)
        if kind == common_pb2.ABORT_KIND_CANCEL and isinstance(self.route, RemoteRoute):
            await self.route.cancel(key.tenant_id, key.effect_id, token)
        return state

    def renew(self, tenant_id: str, session_id: str, token: str | None) -> bool:
        """Takes a session's newest run token; False when no call in flight uses it."""
        return isinstance(self.route, RemoteRoute) and self.route.renew(tenant_id, session_id, token)

    def cancel(self, key: WorkKey, kind: int) -> CancelState:
        """Stops a call; its id is free again at once. Idempotent."""
        run = self._table.running(key)
        if run is None:
            return "not here" if self._table.kept(key) is None else "finished"
        self._table.forget(key)
        if not run.result.done():
            run.result.set_exception(CallAborted(kind))
        if run.task is not None:
            run.task.cancel()
        return "stopping"

    def listens(self, address: str) -> None:
        """Where this process is reached, for others that are asked for its calls."""
        if isinstance(self.route, PlacedRoute):
            self.route.listens(address)

    def stop_taking(self) -> None:
        """Refuses new calls from now on; joins and kept outcomes are still served."""
        self._draining = True

    async def close(self) -> None:
        """Ends all calls in flight without an outcome."""
        self._draining = True
        if isinstance(self.route, StoppingRoute):
            self.route.closing()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if isinstance(self.route, ClosingRoute):
            await self.route.close()

    def _route_of(self, call: ModelCall) -> Route:
        return self._fixture if call.fixture else self.route

    def _begin(self, key: WorkKey, call: ModelCall, run: Run) -> str | Run:
        began = self.work.clock()
        try:
            answer = self._route_of(call).answer(call)
        except BaseException:
            self._table.forget(key)
            self.work.count("model.fault")
            raise
        if isinstance(answer, Pending):
            return self._start(call, key, run, self._work(key, run, answer), answer.with_callers)
        if not answer.delay_ms:
            self._table.finish(key, answer.outcome, sys.getsizeof(answer.outcome))
            self.work.passed("model", "completed", (self.work.clock() - began) * 1000)
            return answer.outcome
        return self._start(call, key, run, self._later(key, run, answer.outcome, answer.delay_ms / 1000))

    def _start(
        self,
        call: ModelCall,
        key: WorkKey,
        run: Run,
        coroutine: Coroutine[Any, Any, None],
        with_callers: bool = False,
    ) -> Run:
        work = self.work.begin("model", call.session_id, call.effect_id, "running")
        run.key, run.with_callers = key, with_callers
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: work.end("aborted" if done.cancelled() else "completed"))
        run.task = task
        return run

    async def _later(self, key: WorkKey, run: Run, outcome: str, delay_s: float) -> None:
        await self._sleep(delay_s)
        self._table.finish(key, outcome, sys.getsizeof(outcome))
        if not run.result.done():
            run.result.set_result(Settled(outcome))

    async def _work(self, key: WorkKey, run: Run, pending: Pending) -> None:
        working = pending.work()
        # What it was made of (the call's whole document) is its own to keep or to drop.
        del pending
        try:
            settled = await working
        except Exception as error:  # noqa: BLE001  (whoever waits gets it; the rpc's edge logs it)
            if self._table.running(key) is run:
                self._table.forget(key)
            self.work.count("model.fault")
            if not run.result.done():
                run.result.set_exception(error)
            return
        if settled.keep:
            self._table.finish(key, settled.outcome, sys.getsizeof(settled.outcome))
        elif self._table.running(key) is run:
            self._table.forget(key)
        if not run.result.done():
            run.result.set_result(settled)

    def _joined(self, call: ModelCall, state: str) -> None:
        self.work.count("model.joined")
        get_logger().info("effect_joined", sessionId=call.session_id, effectId=call.effect_id, state=state)
