"""Serves what a harness asks for (harness-api 8.3); every rule of 8.6 is enforced here or in a transaction.

Each handler checks and hands its transaction over before its first await, so that what a harness sends in a
row is committed in that row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import UNSET

from protocol.errors import HarnessApiError
from protocol.jsjson import RawJson
from protocol.methods import API_VERSION, OUTPUT_METHODS
from services.common.logs import get_logger
from services.dev_core.artifacts.blobs import Blobs
from services.dev_core.artifacts.export import Exporter
from services.dev_core.artifacts.saving import ArtifactSaver
from services.dev_core.clock import now_ms
from services.dev_core.effects.held import HeldRun
from services.dev_core.effects.intent import Recovery
from services.dev_core.effects.poster import ActionPoster
from services.dev_core.harness import claims, mcp
from services.dev_core.harness.channel import Serving
from services.dev_core.harness.connection import Connection
from services.dev_core.harness.effects import EffectRequests
from services.dev_core.harness.outputs import OutputRequests
from services.dev_core.harness.run import Run, held_run
from services.dev_core.harness.scheduler import Scheduler
from services.dev_core.manifests import (
    NO_MCP_TOOLS,
    FactsCache,
    ManifestFacts,
    McpTools,
    facts_of,
    mcp_tools_of,
)
from services.dev_core.run_tokens import RunTokens
from services.dev_core.store import agents
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed
from services.dev_core.transcripts import Transcripts
from services.dev_core.turns import lease, settle
from services.dev_core.turns.lease import Taken
from services.dev_core.turns.start import RunOptions, lease_answer

MAX_RESULT_BYTES: Final = 64 * 1024 * 1024 - 1024
"""Of a result core makes: what the harness takes, less the frame around it."""

Work: TypeAlias = Coroutine[Any, Any, Any] | None
Served: TypeAlias = Callable[[Connection, Serving], Work]


class HarnessRequests:
    """The requests of every connection."""

    def __init__(
        self,
        store: Store,
        transcripts: Transcripts,
        blobs: Blobs,
        options: RunOptions,
        recovery: Recovery,
        tokens: RunTokens,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._transcripts = transcripts
        self._options = options
        self._recovery = recovery
        self._tokens = tokens
        self._manifests = FactsCache()
        self._snapshots = FactsCache()
        self._methods: dict[str, Served] = {}

    def attach(self, scheduler: Scheduler, poster: ActionPoster) -> None:
        """Completes the object: whom requests of runs go to."""
        self._scheduler = scheduler
        saver = ArtifactSaver(self._store, self._blobs)
        effects = EffectRequests(self._store, poster, saver, self._recovery)
        exporter = Exporter(self._store, self._blobs)
        outputs = OutputRequests(self._store, scheduler, self._transcripts, exporter)
        self._methods = {
            "hello": self._hello,
            "lease": self._lease,
            "lease.renew": self._renew,
            "lease.release": outputs.release,
            "effect.intent": effects.intent,
            "effect.outcome": effects.outcome,
            "transcript.read": self._transcript,
            "event": self._event,
            "session.mcp": self._mcp,
        } | dict.fromkeys(OUTPUT_METHODS, outputs.output)

    def serve(self, connection: Connection, serving: Serving) -> Work:
        """Starts to serve one request (see channel.Handler)."""
        return self._methods[serving.method](connection, serving)

    # Hello and leases

    def _hello(self, connection: Connection, serving: Serving) -> Work:
        connection.said_hello = True
        connection.workspace = serving.params.capabilities.workspace is not UNSET
        get_logger().info("harness_attached", name=serving.params.name, version=serving.params.version)
        serving.answer(
            {
                "api": API_VERSION,
                "tenantId": claims.TENANT_ID,
                "sandbox": {"backend": None},
                "renewEveryMs": self._scheduler.times.renew_every_ms,
            }
        )
        return None

    def _lease(self, connection: Connection, serving: Serving) -> Work:
        if not connection.said_hello:
            raise HarnessApiError("invalid", "A harness says hello before it leases")
        if connection.waiting:
            raise HarnessApiError("invalid", "A lease request of this connection is outstanding already")
        connection.waiting = True

        def leased(run: Run) -> None:
            connection.waiting = False
            # A held run needs its start no more, and a thousand of them would keep a thousand manifests.
            answer, run.answer = run.answer, ""
            serving.answer(RawJson(answer))

        waiter = self._scheduler.wait(connection, leased)

        def give_up() -> None:
            if self._scheduler.stop_waiting(waiter):
                connection.waiting = False
                serving.refuse(HarnessApiError("unavailable", "The requester gave up"))

        serving.on_give_up(give_up)
        return None

    async def make_run(
        self, taken: Taken, run_id: str, connection: Connection, lease_until: float
    ) -> Run | None:
        """The run of a lease; None when its start does not fit a frame, and then its turn has failed."""
        pinned = await self._facts(taken.session.manifest_hash)
        facts = pinned
        if taken.session.turn_manifest_hash is not None:
            facts = await self._facts(taken.session.turn_manifest_hash)
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
            engine=facts.engine,
        )
        token = self._tokens.mint(held)
        answer = lease_answer(taken, run_id, facts, pinned.text, tools, self._options, token.members())
        if not fits_frame(answer):
            message = f"The start of the turn is {len(answer)} characters long and does not fit a frame"
            await self._store.write(
                partial(settle.fail_unofferable, run=held, message=message, now_ms=now_ms())
            )
            return None
        return Run(held, connection, facts, tools, answer, lease_until, token)

    async def _facts(self, manifest_hash: str) -> ManifestFacts:
        facts: ManifestFacts | None = self._manifests.get(manifest_hash)
        if facts is None:
            text = await self._store.read(partial(agents.manifest, manifest_hash=manifest_hash))
            assert text is not None
            facts = facts_of(manifest_hash, text)
            self._manifests.put(manifest_hash, facts, facts.chars)
        return facts

    def _mcp_tools(self, snapshot: str) -> McpTools:
        tools: McpTools | None = self._snapshots.get(snapshot)
        if tools is None:
            tools = mcp_tools_of(snapshot)
            self._snapshots.put(snapshot, tools, 2 * len(snapshot))
        return tools

    def _renew(self, connection: Connection, serving: Serving) -> Work:
        run = held_run(connection, serving.params.run_id)
        if run.abort is not None:
            serving.answer({"ok": True})
            return None
        lease_ms = self._scheduler.times.lease_ms
        until = asyncio.get_running_loop().time() + lease_ms / 1000
        extending = self._store.submit(
            partial(
                lease.extend,
                session_id=run.session_id,
                epoch=run.held.epoch,
                owner=run.held.owner,
                until_ms=now_ms() + lease_ms,
            )
        )
        return self._renewed(run, until, extending)

    async def _renewed(self, run: Run, until: float, extending: asyncio.Future[bool]) -> Any:
        if await extending:
            self._scheduler.renewed(run, until)
            run.token = self._tokens.current(run.held, run.token)
            return {"ok": True, **run.token.members()}
        self._scheduler.abort(run, "ownership.lost", "Ownership lost")
        return {"ok": False}

    # Documents and events

    def _transcript(self, connection: Connection, serving: Serving) -> Work:
        return self._read_transcript(held_run(connection, serving.params.run_id))

    async def _read_transcript(self, run: Run) -> Any:
        entries = await self._transcripts.at(run.session_id, run.held.cursor)
        text = ",".join(entry.text for entry in entries)
        if not fits_frame(text):
            raise HarnessApiError("invalid", f"The transcript is {len(text)} characters: no frame carries it")
        return RawJson(f'{{"cursor":{run.held.cursor},"entries":[{text}]}}')

    def _mcp(self, connection: Connection, serving: Serving) -> Work:
        run = held_run(connection, serving.params.run_id)
        found = mcp.read_discovered(serving.params, serving.plain)
        recording = self._store.submit(partial(mcp.record, run=run.held, found=found, now_ms=now_ms()))
        return self._recorded_mcp(run, recording)

    async def _recorded_mcp(self, run: Run, recording: asyncio.Future[str]) -> Any:
        snapshot = await recording
        run.mcp = self._mcp_tools(snapshot)
        return {"snapshot": RawJson(snapshot), "sessionTools": RawJson(run.mcp.session_tools)}

    def _event(self, connection: Connection, serving: Serving) -> Work:
        params = serving.params
        if params.run_id is not UNSET:
            # The workspace of a session is its own: owner and session are one.
            allowed = params.session_id == held_run(connection, params.run_id).session_id
        else:
            allowed = connection.open_claims > 0 or params.session_id in connection.claims
        if not allowed:
            raise HarnessApiError("run_not_held", "No request in flight lets this harness write that event")
        claims.check_record(params)
        storing = self._store.submit(
            partial(claims.store_event, params=params, plain=serving.plain, now_ms=now_ms())
        )
        return self._stored_event(params.session_id, storing)

    async def _stored_event(self, session_id: str, storing: asyncio.Future[None]) -> Any:
        try:
            await storing
        except StoreFailed as error:
            get_logger().error("event_not_stored", sessionId=session_id, error=str(error))
        return {}


def fits_frame(text: str) -> bool:
    """Whether the harness takes a frame with this result."""
    return len(text) * 4 <= MAX_RESULT_BYTES or len(text.encode()) <= MAX_RESULT_BYTES
