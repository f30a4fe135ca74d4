"""Serves what a harness asks for (harness-api 8.3); every rule of 8.6 is enforced here or in a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.jsjson import RawJson
from protocol.methods import API_VERSION, OUTPUT_METHODS
from services.common.logs import get_logger
from services.dev_core.clock import now_ms
from services.dev_core.effects import intent, outcome
from services.dev_core.effects.held import HeldRun
from services.dev_core.effects.intent import Asked, Recovery
from services.dev_core.effects.poster import ActionPoster
from services.dev_core.harness import claims, mcp
from services.dev_core.harness.channel import Serving
from services.dev_core.harness.connection import Connection
from services.dev_core.harness.run import Run, run_not_held
from services.dev_core.harness.scheduler import Scheduler
from services.dev_core.manifests import (
    NO_MCP_TOOLS,
    FactsCache,
    ManifestFacts,
    McpTools,
    facts_of,
    mcp_tools_of,
)
from services.dev_core.store import agents
from services.dev_core.store.database import Store, StoreFailed
from services.dev_core.transcripts import Transcripts
from services.dev_core.turns import lease, settle
from services.dev_core.turns.lease import Taken
from services.dev_core.turns.settle import Output
from services.dev_core.turns.start import RunOptions, lease_answer

MAX_RESULT_BYTES: Final = 64 * 1024 * 1024 - 1024
"""Of a result core makes: what the harness takes, less the frame around it."""

Served = Callable[[Connection, Serving], Awaitable[Any]]


class HarnessRequests:
    """The requests of every connection."""

    def __init__(
        self, store: Store, transcripts: Transcripts, options: RunOptions, recovery: Recovery
    ) -> None:
        self._store = store
        self._transcripts = transcripts
        self._options = options
        self._recovery = recovery
        self._manifests = FactsCache()
        self._snapshots = FactsCache()
        self.scheduler: Scheduler
        self.poster: ActionPoster
        self._methods: dict[str, Served] = {
            "hello": self._hello,
            "lease": self._lease,
            "lease.renew": self._renew,
            "lease.release": self._release,
            "effect.intent": self._intent,
            "effect.outcome": self._outcome,
            "transcript.read": self._transcript,
            "event": self._event,
            "session.mcp": self._mcp,
        } | dict.fromkeys(OUTPUT_METHODS, self._output)

    async def serve(self, connection: Connection, serving: Serving) -> Any:
        """The result of one request. Raises HarnessApiError."""
        try:
            return await self._methods[serving.method](connection, serving)
        except StoreFailed as error:
            raise HarnessApiError("internal", str(error)) from error

    # Hello and leases

    async def _hello(self, connection: Connection, serving: Serving) -> Any:
        connection.said_hello = True
        connection.workspace = serving.params.capabilities.workspace is not UNSET
        get_logger().info("harness_attached", name=serving.params.name, version=serving.params.version)
        return {
            "api": API_VERSION,
            "tenantId": claims.TENANT_ID,
            "sandbox": {"backend": None},
            "renewEveryMs": self.scheduler.times.renew_every_ms,
        }

    async def _lease(self, connection: Connection, serving: Serving) -> Any:
        if not connection.said_hello:
            raise HarnessApiError("invalid", "A harness says hello before it leases")
        if connection.waiting:
            raise HarnessApiError("invalid", "A lease request of this connection is outstanding already")
        connection.waiting = True
        waiter = self.scheduler.wait(connection)
        given_up = HarnessApiError("unavailable", "The requester gave up")

        def give_up() -> None:
            self.scheduler.stop_waiting(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(given_up)

        serving.on_give_up(give_up)
        try:
            run = await waiter.future
        finally:
            connection.waiting = False
        # A held run needs its start no more, and a thousand of them would keep a thousand manifests.
        answer, run.answer = run.answer, ""
        return RawJson(answer)

    async def make_run(
        self, taken: Taken, run_id: str, connection: Connection, lease_until: float
    ) -> Run | None:
        """The run of a lease; None when its start does not fit a frame, and then its turn has failed."""
        facts = await self._facts(taken.session.manifest_hash)
        tools = NO_MCP_TOOLS if taken.mcp_snapshot is None else self._mcp_tools(taken.mcp_snapshot)
        held = HeldRun(
            run_id=run_id,
            session_id=taken.session.id,
            turn_id=taken.turn_id,
            segment=taken.segment,
            epoch=taken.epoch,
            owner=taken.owner,
            agent_id=facts.id,
            manifest_hash=facts.hash,
            cursor=taken.cursor,
        )
        answer = lease_answer(taken, run_id, facts.text, tools, self._options)
        if not fits_frame(answer):
            message = f"The start of the turn is {len(answer)} characters long and does not fit a frame"
            await self._store.write(
                partial(settle.fail_unofferable, run=held, message=message, now_ms=now_ms())
            )
            return None
        return Run(held, connection, facts, tools, answer, lease_until)

    async def _facts(self, manifest_hash: str) -> ManifestFacts:
        facts: ManifestFacts | None = self._manifests.get(manifest_hash)
        if facts is None:
            text = await self._store.read(partial(agents.manifest, manifest_hash=manifest_hash))
            assert text is not None
            facts = facts_of(manifest_hash, text)
            self._manifests.put(manifest_hash, facts, len(text))
        return facts

    def _mcp_tools(self, snapshot: str) -> McpTools:
        tools: McpTools | None = self._snapshots.get(snapshot)
        if tools is None:
            tools = mcp_tools_of(snapshot)
            self._snapshots.put(snapshot, tools, 2 * len(snapshot))
        return tools

    def _held(self, connection: Connection, run_id: str) -> Run:
        run = connection.runs.get(run_id)
        if run is None or run.ended:
            raise run_not_held(run_id)
        return run

    async def _renew(self, connection: Connection, serving: Serving) -> Any:
        run = self._held(connection, serving.params.run_id)
        if run.abort is not None:
            return {"ok": True}
        lease_ms = self.scheduler.times.lease_ms
        until = asyncio.get_running_loop().time() + lease_ms / 1000
        held = run.held
        if await self._store.write(
            partial(
                lease.extend,
                session_id=held.session_id,
                epoch=held.epoch,
                owner=held.owner,
                until_ms=now_ms() + lease_ms,
            )
        ):
            self.scheduler.renewed(run, until)
            return {"ok": True}
        self.scheduler.abort(run, "ownership.lost", "Ownership lost")
        return {"ok": False}

    async def _release(self, connection: Connection, serving: Serving) -> Any:
        run = self._held(connection, serving.params.run_id)
        if serving.params.reason != "shutdown":
            # Another owner has it, or will have it when the lease lapses.
            self.scheduler.lose(run)
            return {}
        run.over = True
        await self._give_back(run)
        return {}

    async def _give_back(self, run: Run) -> None:
        held = run.held
        try:
            offer = await self._store.write(
                partial(
                    lease.give_back,
                    session_id=held.session_id,
                    epoch=held.epoch,
                    owner=held.owner,
                    now_ms=now_ms(),
                )
            )
        except StoreFailed:
            self.scheduler.lose(run)
            raise
        self.scheduler.end(run, offer=offer)

    # Effects

    async def _intent(self, connection: Connection, serving: Serving) -> Any:
        params = serving.params
        run = self._held(connection, params.run_id)
        asked = Asked(params.effect, serving.raw["effect"], params.request_hash, serving.plain)
        intent.check_asked(run.held, asked)
        effect_id = params.effect.effect_id
        if effect_id in run.asked:
            raise HarnessApiError("invalid", f"The run asked about the effect {effect_id} before")
        run.asked.add(effect_id)
        abort = run.abort
        decision = await self._store.write(
            partial(
                intent.decide,
                run=run.held,
                asked=asked,
                facts=run.facts,
                mcp=run.mcp,
                recovery=self._recovery,
                abort_message=None if abort is None else abort.message,
                now_ms=now_ms(),
            )
        )
        if decision.action:
            self.poster.post(run.session_id, effect_id)
        return decision.answer()

    async def _outcome(self, connection: Connection, serving: Serving) -> Any:
        params = serving.params
        run = self._held(connection, params.run_id)
        if params.error is not UNSET:
            await self._store.write(
                partial(
                    outcome.record_error,
                    run=run.held,
                    effect_id=params.effect_id,
                    error=params.error,
                    now_ms=now_ms(),
                )
            )
            return {"status": "uncertain"}
        recorded = await self._store.write(
            partial(
                outcome.record_value,
                run=run.held,
                effect_id=params.effect_id,
                value=jsjson.dumps(params.value, plain=serving.plain),
                failed=outcome.is_failure(params.value),
                cancelled=run.abort is not None and run.abort.kind == "cancel",
                now_ms=now_ms(),
            )
        )
        return {"status": "completed", "outcome": RawJson(recorded)}

    # Documents and events

    async def _transcript(self, connection: Connection, serving: Serving) -> Any:
        run = self._held(connection, serving.params.run_id)
        entries = await self._transcripts.at(run.session_id, run.held.cursor)
        text = ",".join(entry.text for entry in entries)
        if not fits_frame(text):
            raise HarnessApiError("invalid", f"The transcript is {len(text)} characters: no frame carries it")
        return RawJson(f'{{"cursor":{run.held.cursor},"entries":[{text}]}}')

    async def _mcp(self, connection: Connection, serving: Serving) -> Any:
        run = self._held(connection, serving.params.run_id)
        found = mcp.read_discovered(serving.params, serving.plain)
        snapshot = await self._store.write(partial(mcp.record, run=run.held, found=found, now_ms=now_ms()))
        run.mcp = self._mcp_tools(snapshot)
        return {"snapshot": RawJson(snapshot), "sessionTools": RawJson(run.mcp.session_tools)}

    async def _event(self, connection: Connection, serving: Serving) -> Any:
        params = serving.params
        if params.run_id is not UNSET:
            run = self._held(connection, params.run_id)
            # The workspace of a session is its own: owner and session are one.
            allowed = params.session_id == run.session_id
        else:
            allowed = connection.open_claims > 0 or params.session_id in connection.claims
        if not allowed:
            raise HarnessApiError("run_not_held", "No request in flight lets this harness write that event")
        claims.check_record(params)
        try:
            await self._store.write(
                partial(claims.store_event, params=params, plain=serving.plain, now_ms=now_ms())
            )
        except StoreFailed as error:
            get_logger().error("event_not_stored", sessionId=params.session_id, error=str(error))
        return {}

    # The end of a run

    async def _output(self, connection: Connection, serving: Serving) -> Any:
        run = connection.runs.get(serving.params.run_id)
        if run is None or run.over:
            raise run_not_held(serving.params.run_id)
        if run.ended_by is not None:
            method, answer = run.ended_by
            if method != serving.method:
                raise run_not_held(run.id)
            return await asyncio.shield(answer)
        answer = asyncio.get_running_loop().create_future()
        run.ended_by = (serving.method, answer)
        try:
            result = await self._settle(run, Output.of(serving.method, serving.params, serving.plain))
        except BaseException as error:
            answer.set_exception(error if isinstance(error, HarnessApiError) else _unsettled())
            answer.exception()  # A repeat may ask for it; nobody has to.
            raise
        answer.set_result(result)
        return result

    async def _settle(self, run: Run, output: Output) -> Any:
        abort = run.abort
        if abort is not None and abort.kind in ("shutdown", "ownership.lost"):
            await self._refuse_aborted(run, abort)
        try:
            settled = await self._store.write(
                partial(settle.settle, run=run.held, output=output, abort=abort, now_ms=now_ms())
            )
        except (HarnessApiError, StoreFailed):
            # Nothing was written: the session stays leased until its lease lapses.
            self.scheduler.lose(run)
            raise
        if settled.cursor is not None:
            self._transcripts.advance(run.session_id, run.held.cursor, settled.cursor, settled.edits)
        self.scheduler.end(run, offer=settled.offer)
        if settled.refusal is not None:
            raise settled.refusal
        return {} if settled.cursor is None else {"cursor": settled.cursor}

    async def _refuse_aborted(self, run: Run, abort: settle.Abort) -> None:
        if abort.kind == "shutdown":
            await self._give_back(run)
            raise HarnessApiError("internal", abort.message)
        self.scheduler.end(run, offer=False)
        raise HarnessApiError("ownership_lost", abort.message)


def fits_frame(text: str) -> bool:
    """Whether the harness takes a frame with this result."""
    return len(text) * 4 <= MAX_RESULT_BYTES or len(text.encode()) <= MAX_RESULT_BYTES


def _unsettled() -> HarnessApiError:
    return HarnessApiError("internal", "The output was not settled")
