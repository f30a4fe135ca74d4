"""Keyed tool calls: each runs once and outlives who asked for it (mcp-pool 9.4).

A key is an effect id. Whoever asks for the same call again joins it while it runs and gets its answer for
30 minutes from memory, and for a day from the file, also after a restart. A call of the file that has no
answer and does not run here is uncertain, for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from services.common.calls import Conflict, Fresh, Joined, Kept, Stale, WorkKey, WorkTable
from services.common.logs import error_text, get_logger
from services.tool_gate import answers
from services.tool_gate.bodies import CallRequest
from services.tool_gate.faults import Faults
from services.tool_gate.problems import GateProblem, conflict, forbidden, stale, unavailable
from services.tool_gate.rows import CallRows, RowsFailed
from services.tool_gate.tokens import Grant

Perform = Callable[[], Awaitable[str]]
"""Calls a tool; the answer's JSON text. When cancelled, the server is told."""

_CONFLICT: Final = "This key stands for another call."
_STALE: Final = "A newer lease of the session holds this call."


class _Run:
    """A call in flight: its owner, its task, and what those who wait are told."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda future: future.cancelled() or future.exception())


class KeyedCalls:
    """See the module. `clock` gives seconds and never goes back."""

    def __init__(
        self,
        rows: CallRows,
        faults: Faults | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._faults = faults or Faults()
        self._table: WorkTable[_Run, str] = WorkTable(clock)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Calls in flight."""
        return len(self._tasks)

    async def call(self, request: CallRequest, grant: Grant, perform: Perform) -> str:
        """The answer's JSON text; `perform` is called when nobody has asked for the call before.

        Raises GateProblem. Cancelling the caller does not stop the call.
        """
        key = _key(request.effect_id)
        match self._table.enter(key, request.digest, lambda: _Run(grant.session_id), grant.epoch):
            case Fresh(run):
                self._start(key, request, grant, run, perform)
            case Joined(run):
                get_logger().info("gate_call_joined", sessionId=grant.session_id, effectId=request.effect_id)
            case Kept(answer):
                return answer
            case Conflict():
                raise conflict(_CONFLICT)
            case Stale():
                raise stale(_STALE)
        return await asyncio.shield(run.answer)

    def cancel(self, effect_id: str, session_id: str) -> None:
        """Stops a call that runs; nothing else changes. Raises GateProblem for another session's call."""
        run = self._table.running(_key(effect_id))
        if run is None:
            return
        if run.session_id != session_id:
            raise forbidden("The call is another session's.")
        if run.task is not None:
            run.cancelled = True
            run.task.cancel()

    async def drain(self, seconds: float) -> None:
        """Waits for calls in flight, and aborts those that are left; they stay without an answer."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _start(self, key: WorkKey, request: CallRequest, grant: Grant, run: _Run, perform: Perform) -> None:
        task = asyncio.get_running_loop().create_task(self._run(key, request, grant, run, perform))
        run.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, key: WorkKey, request: CallRequest, grant: Grant, run: _Run, perform: Perform
    ) -> None:
        try:
            answer = await self._answer(request, grant, perform)
        except asyncio.CancelledError:
            self._table.forget(key)
            text = answers.CANCELLED if run.cancelled else answers.STOPPED
            run.answer.set_result(answers.uncertain(text))
            if not run.cancelled:
                raise
        except GateProblem as problem:
            self._table.forget(key)
            run.answer.set_exception(problem)
        except Exception as error:  # noqa: BLE001  (the edge of a call: whoever waits is told)
            get_logger().error("gate_call_failed", effectId=request.effect_id, error=error_text(error))
            self._table.forget(key)
            run.answer.set_result(answers.uncertain(answers.UNKNOWN))
        else:
            self._table.finish(key, answer, len(answer))
            run.answer.set_result(answer)

    async def _answer(self, request: CallRequest, grant: Grant, perform: Perform) -> str:
        effect_id = request.effect_id
        try:
            begun = await self._rows.begin(effect_id, grant.session_id, grant.epoch, request.digest)
        except RowsFailed as error:
            get_logger().error("gate_rows_failed", error=str(error))
            raise unavailable("The Tool Gate can't note calls, so it makes none; its log says why.") from None
        match begun.verdict:
            case "answered":
                return begun.answer
            case "open":
                return answers.uncertain(answers.UNKNOWN)
            case "conflict":
                raise conflict(_CONFLICT)
            case "stale":
                raise stale(_STALE)
        await self._faults.strike("tool-calls", "written", effect_id)
        answer = await perform()
        await self._faults.strike("tool-calls", "answered", effect_id)
        try:
            await self._rows.settle(effect_id, answer)
        except RowsFailed as error:
            # Whoever waits gets the answer all the same; after a restart the call is uncertain.
            get_logger().error("gate_rows_failed", error=str(error))
        return answer


def _key(effect_id: str) -> WorkKey:
    """Keys are the gate's own, whoever asks: another session's key is a conflict."""
    return WorkKey("", "", effect_id)
