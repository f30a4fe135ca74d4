"""The requests that end a run: its output, or its release (harness-api 8.3, 8.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from protocol.errors import HarnessApiError
from services.dev_core.artifacts.export import Exporter
from services.dev_core.clock import now_ms
from services.dev_core.harness.channel import CLOSED, Serving
from services.dev_core.harness.connection import Connection
from services.dev_core.harness.run import Run, held_run, run_not_held
from services.dev_core.harness.scheduler import Scheduler
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed
from services.dev_core.transcripts import Transcripts
from services.dev_core.turns import lease, settle
from services.dev_core.turns.settle import Output, Settled


class OutputRequests:
    """Serves the ends of runs: each run is settled once."""

    def __init__(
        self, store: Store, scheduler: Scheduler, transcripts: Transcripts, exporter: Exporter
    ) -> None:
        self._store = store
        self._exporter = exporter
        self._scheduler = scheduler
        self._transcripts = transcripts

    def output(self, connection: Connection, serving: Serving) -> Coroutine[Any, Any, Any]:
        """Settles a run; the same request once more while it is unanswered gets the same answer."""
        run = connection.runs.get(serving.params.run_id)
        if run is None or run.over:
            raise run_not_held(serving.params.run_id)
        if run.ended_by is not None:
            method, answer = run.ended_by
            if method != serving.method:
                raise run_not_held(run.id)
            return _same(answer)
        answer = asyncio.get_running_loop().create_future()
        run.ended_by = (serving.method, answer)
        return self._answer_all(answer, self._begin(run, serving, exported=False))

    async def _answer_all(
        self, answer: asyncio.Future[Any], settling: Coroutine[Any, Any, Any]
    ) -> dict[str, int]:
        try:
            result: dict[str, int] = await settling
        except BaseException as error:
            wire = isinstance(error, HarnessApiError)
            answer.set_exception(error if wire else HarnessApiError("internal", "The output was not settled"))
            answer.exception()  # A repeat may ask for it; nobody has to.
            raise
        answer.set_result(result)
        return result

    def _begin(self, run: Run, serving: Serving, *, exported: bool) -> Coroutine[Any, Any, Any]:
        abort = run.abort
        if abort is not None and abort.kind == "shutdown":
            return self._released(run, self._give_back(run), HarnessApiError("internal", abort.message))
        if abort is not None and abort.kind == "ownership.lost":
            return self._lost(run, HarnessApiError("ownership_lost", abort.message))
        if serving.method == "turn.completed" and run.facts.sandbox is not None and not exported:
            return self._export_first(run, serving)
        output = Output.of(serving.method, serving.params, serving.plain, run.held.engine)
        settling = self._store.submit(
            partial(settle.settle, run=run.held, output=output, abort=abort, now_ms=now_ms())
        )
        return self._settled(run, settling)

    async def _export_first(self, run: Run, serving: Serving) -> dict[str, int]:
        try:
            await self._exporter.export(run)
        except (HarnessApiError, StoreFailed):
            self._scheduler.lose(run)
            raise
        if run.connection.closed:
            # Nobody knows the answer any more: the lease lapses and a later run ends the turn again.
            self._scheduler.lose(run)
            raise HarnessApiError("unavailable", CLOSED)
        ended: dict[str, int] = await self._begin(run, serving, exported=True)
        return ended

    async def _lost(self, run: Run, refusal: HarnessApiError) -> None:
        self._scheduler.end(run, offer=False)
        raise refusal

    async def _settled(self, run: Run, settling: asyncio.Future[Settled]) -> dict[str, int]:
        try:
            settled = await settling
        except (HarnessApiError, StoreFailed):
            # Nothing was written: the session stays leased until its lease lapses.
            self._scheduler.lose(run)
            raise
        if settled.cursor is not None:
            self._transcripts.advance(run.session_id, run.held.cursor, settled.cursor, settled.edits)
        self._scheduler.end(run, offer=settled.offer)
        if settled.refusal is not None:
            raise settled.refusal
        return {} if settled.cursor is None else {"cursor": settled.cursor}

    # Releases

    def release(self, connection: Connection, serving: Serving) -> Coroutine[Any, Any, Any] | None:
        """Lets a run go without an output."""
        run = held_run(connection, serving.params.run_id)
        if serving.params.reason != "shutdown":
            # Another owner has it, or will have it when the lease lapses.
            self._scheduler.lose(run)
            serving.answer({})
            return None
        run.over = True
        return self._released(run, self._give_back(run), None)

    def _give_back(self, run: Run) -> asyncio.Future[bool]:
        held = run.held
        return self._store.submit(
            partial(
                lease.give_back,
                session_id=held.session_id,
                epoch=held.epoch,
                owner=held.owner,
                now_ms=now_ms(),
            )
        )

    async def _released(
        self, run: Run, giving_back: asyncio.Future[bool], refusal: HarnessApiError | None
    ) -> dict[str, int]:
        try:
            offer = await giving_back
        except StoreFailed:
            self._scheduler.lose(run)
            raise
        self._scheduler.end(run, offer=offer)
        if refusal is not None:
            raise refusal
        return {}


async def _same(answer: asyncio.Future[Any]) -> Any:
    return await asyncio.shield(answer)
