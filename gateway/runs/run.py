"""One run, from its lease to its report (harness-api 5.2)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from msgspec import UNSET

from gateway.connection import Connection
from gateway.engine.contract import (
    Abort,
    AbortKind,
    Engine,
    EngineRefused,
    SegmentInput,
    SegmentResult,
)
from gateway.executors.contract import (
    AbortSignal,
    ExecutionFailed,
    RunAborted,
)
from gateway.harness_api.channel import FrameTooLarge
from gateway.recording.recorder import RecordedEngine, RunRecording, UsedRouting
from gateway.runs.effects import EffectPorts, Effects, outcome_document
from gateway.runs.holds import Holds, Resolution
from gateway.runs.host import Identity, RunHost
from gateway.runs.manifests import SharedManifest
from gateway.runs.mcp import prepare_mcp
from gateway.runs.output import Params, thrown_output, turn_output
from gateway.runs.phases import RUN_STEPS, RunPhase, next_phase
from gateway.runs.renewal import Renewal
from gateway.runs.segment import SegmentDriver
from gateway.runs.start import hold_seconds, run_context, segment_input
from gateway.runs.transcript_cache import TranscriptCache, estimated_size
from protocol.errors import HarnessApiError
from protocol.jsjson import MAX_DEPTH, JsonValue, dumps_bytes
from protocol.jsonread import is_plain
from protocol.jsonscan import depth_of
from protocol.methods import (
    EffectResolvedMessage,
    LeaseResult,
    OutputResult,
    TranscriptReadResult,
    TurnStart,
)
from protocol.transcript import Entry, Update, entries_of, list_size, updates
from services.common.logs import error_text, get_logger, trace_context
from services.common.telemetry import new_trace_id, traceparent

DEFAULT_MESSAGES: Final = {
    AbortKind.CANCEL: "Turn cancelled",
    AbortKind.SHUTDOWN: "The harness is stopping",
    AbortKind.DEADLINE: "The advance ran past its deadline",
    AbortKind.OWNERSHIP_LOST: "Ownership lost",
}

_GIVEN_BACK: Final = frozenset({AbortKind.SHUTDOWN, AbortKind.OWNERSHIP_LOST})
_FAULT: Final = "The harness failed to run the segment"
_TOO_DEEP: Final = (
    f"The result of the turn nests deeper than the {MAX_DEPTH} levels of a frame that the core reads"
)


def abort_of(kind: AbortKind, message: str | None = None) -> Abort:
    """An abort with its own message, or the kind's usual one."""
    return Abort(kind, DEFAULT_MESSAGES[kind] if message is None else message)


@dataclass(frozen=True, slots=True)
class _Thrown:
    """The run could not be carried through to a result."""

    code: str | None
    message: str


class Run:
    """A leased run. `ended` is called once, when it is over."""

    def __init__(
        self,
        host: RunHost,
        connection: Connection,
        lease: LeaseResult,
        *,
        plain: bool,
        identity: Identity,
        cache: TranscriptCache,
        renew_every_s: float,
        ended: Callable[[Run], None],
    ) -> None:
        grant, start = lease.run, lease.input
        self.run_id: Final = grant.run_id
        self.session_id: Final = grant.session_id
        self.turn_id: Final = grant.turn_id
        self.phase = RunPhase.PREPARING
        self.outcome = "failed"
        """How it ended: a status of the engine's, or `released`; it counts once the run is over."""
        self._host = host
        self._connection = connection
        self._cache = cache
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.started_at: Final = self._loop.time()
        self._signal = AbortSignal()
        self._holds = Holds(self._signal)
        self._hold_s = hold_seconds(start, host.hold_limit_ms)
        self._renewal = Renewal(host, connection, grant, signal=self._signal, every_s=renew_every_s)
        self._grant = grant
        self._start: TurnStart | None = start
        self._recording: RunRecording | None = None
        self._plain = plain
        self._root_manifest: Final = host.manifests.share(start.routing.root_manifest, plain=plain)
        self._snapshot: SharedManifest | None = None
        context = contextvars.copy_context()
        context.run(trace_context.set, traceparent(new_trace_id()))
        self._ports = EffectPorts(
            connection=connection,
            run=run_context(
                lease,
                identity,
                connection,
                host.tokens,
                self._root_manifest.document,
                self._first_snapshot(start),
            ),
            signal=self._signal,
            holds=self._holds,
            executors=host.executors,
            tasks=host.tasks,
            hold_s=self._seconds_to_hold,
            context=context,
            telemetry=host.telemetry,
        )
        self._effects = Effects(self._ports)
        host.tasks.start(self._live(), context=context)

    # From outside

    def abort(self, abort: Abort) -> None:
        """Aborts the run; only the first abort counts."""
        self._signal.set(abort)

    def resolved(self, message: EffectResolvedMessage, plain: bool) -> None:
        """Core has the outcome of an effect that was pending."""
        self._holds.resolved(message.effect_id, Resolution(outcome_document(message.outcome), plain))

    def facts(self) -> dict[str, Any]:
        """What may be shown of the run: ids, kinds, phases, ages and outcomes, never content."""
        return {
            "runId": self.run_id,
            "sessionId": self.session_id,
            "turnId": self.turn_id,
            "phase": str(self.phase),
            "ageMs": round((self._loop.time() - self.started_at) * 1000),
            "effects": self._effects.phases(),
            "open": self._effects.facts(),
            "done": self._effects.done(),
        }

    # The life of a run

    async def _live(self) -> None:
        attributes = {
            "nylorun.session.id": self.session_id,
            "nylorun.run.id": self.run_id,
            "nylorun.turn.id": self.turn_id,
        }
        telemetry = self._host.telemetry
        # The id that logs have from the start is nobody's span: as a parent it would say "not sampled".
        above = None if telemetry.enabled else trace_context.get()
        try:
            with telemetry.span("harness.run", attributes, above) as parent:
                trace_context.set(parent)
                await self._carry_through()
        except Exception as error:  # noqa: BLE001  (a fault of ours in one run never ends the others)
            get_logger().warning("harness run failed", runId=self.run_id, error=error_text(error))
        finally:
            self._renewal.stop()
            self._holds.close()
            if self._recording is not None:
                self._recording.close()
            self.phase = RunPhase.ENDED
            self._ended(self)

    def _enter(self, phase: RunPhase) -> None:
        self.phase = next_phase(RUN_STEPS, self.phase, phase)

    async def _carry_through(self) -> None:
        start, self._start = self._start, None
        assert start is not None
        keeps_transcript = start.engine == "agent"
        cursor = start.transcript.cursor
        transcript: Sequence[Entry] = ()
        end: SegmentResult | _Thrown
        try:
            tools = await self._prepare(start)
            transcript = await self._starting_transcript(start)
            manifest = self._host.manifests.share(start.manifest, plain=self._plain)
            segment = segment_input(start, manifest.document, tools, transcript, plain=self._plain)
            engine = self._make_engine(start, segment)
            # A run may wait long for an Action: what it started from lives in its engine alone.
            del start, tools, manifest, segment
            self._enter(RunPhase.RUNNING)
            end = await SegmentDriver(engine, self._signal, self._effects.ask).run()
            del engine
        except (EngineRefused, HarnessApiError) as error:
            end = _Thrown(error.code, error.message)
        except (RunAborted, ExecutionFailed) as error:
            end = _Thrown(None, str(error))
        except Exception as error:  # noqa: BLE001  (a fault of the engine ends its run, and core is told)
            get_logger().error("harness_engine_failed", runId=self.run_id, error=error_text(error))
            end = _Thrown(None, _FAULT)
        abort = self._signal.abort
        if abort is not None and abort.kind in _GIVEN_BACK:
            if self._recording is not None:
                due = _output_due(self.run_id, end, transcript)
                self._recording.released(str(abort.kind), due)
            self.outcome = "released"
            await self._release(abort)
        else:
            self.outcome = "failed" if isinstance(end, _Thrown) else end.status
            await self._report(end, transcript, cursor, keeps_transcript)

    async def _prepare(self, start: TurnStart) -> Sequence[Any]:
        """The run's session tools."""
        tools: Sequence[Any] = () if start.session_tools is UNSET else start.session_tools
        if start.engine != "agent":
            return tools
        prepared = await prepare_mcp(self._host.executors.mcp, self._root_manifest, self._ports)
        if prepared is None:
            return tools
        self._ports.run.mcp_snapshot = self._share_snapshot(prepared.snapshot, prepared.plain)
        return prepared.session_tools

    async def _starting_transcript(self, start: TurnStart) -> Sequence[Entry]:
        if start.engine != "agent" or not isinstance(start.checkpoint.get("state"), dict):
            return ()
        cached = self._cache.get(self.session_id, start.transcript.cursor)
        if cached is not None:
            return cached.entries
        reply = await self._ports.ask("transcript.read", {"runId": self.run_id})
        read: TranscriptReadResult = reply.result
        return entries_of(read.entries, plain=reply.plain)

    def _make_engine(self, start: TurnStart, segment: SegmentInput) -> Engine:
        if self._host.recorder is None:
            return self._host.make_engine(start.engine, segment)
        run = self._ports.run
        routing = UsedRouting(self._root_manifest, run.mcp_snapshot, run.tenant_id, run.preference)
        recording = self._host.recorder.begin(self._grant, start, segment, routing)
        self._recording = recording
        observed = replace(segment, observe=recording.observe)
        return RecordedEngine(self._host.make_engine(start.engine, observed), recording)

    def _first_snapshot(self, start: TurnStart) -> JsonValue:
        known = start.routing.mcp_snapshot
        return None if known is UNSET else self._share_snapshot(known, self._plain)

    def _share_snapshot(self, snapshot: JsonValue, plain: bool) -> JsonValue:
        """Sessions of one agent have equal snapshots, so their held runs share one object."""
        if not isinstance(snapshot, dict):
            return snapshot
        self._snapshot = self._host.manifests.share(snapshot, plain=plain)
        return cast(JsonValue, self._snapshot.document)

    def _seconds_to_hold(self) -> float | None:
        if self._hold_s is None:
            return None
        hold_s, budget_s = self._hold_s
        return min(hold_s, budget_s - (self._loop.time() - self.started_at))

    # The end

    async def _release(self, abort: Abort) -> None:
        self._enter(RunPhase.RELEASING)
        try:
            await self._connection.ask("lease.release", {"runId": self.run_id, "reason": str(abort.kind)})
        except HarnessApiError as error:
            # Core lets the lease lapse by itself; after a lost connection nobody is there to ask.
            get_logger().debug("harness_release_failed", runId=self.run_id, error=error.message)

    async def _report(
        self, end: SegmentResult | _Thrown, before: Sequence[Entry], cursor: int, keeps_transcript: bool
    ) -> None:
        self._enter(RunPhase.REPORTING)
        if isinstance(end, _Thrown):
            await self._send_output(*thrown_output(self.run_id, end.code, end.message))
            self._cache.drop(self.session_id)
            return
        if end.status in ("waiting", "uncertain"):
            await self._send_output(*turn_output(self.run_id, end, before))
            if keeps_transcript:
                self._cache.put(self.session_id, cursor, before, list_size(before))
            return
        after = end.transcript or ()
        edits = updates(before, after) if end.state is not None else []
        result = await self._send_output(*turn_output(self.run_id, end, before, edits))
        if result is None or result.cursor is UNSET or end.state is None:
            self._cache.drop(self.session_id)
        else:
            self._keep(result.cursor, cursor, before, after, edits)

    def _keep(
        self,
        cursor: int,
        old_cursor: int,
        before: Sequence[Entry],
        after: Sequence[Entry],
        edits: Sequence[Update],
    ) -> None:
        cached = self._cache.get(self.session_id, old_cursor)
        size = estimated_size(None if cached is None else cached.size, before, after, edits)
        self._cache.put(self.session_id, cursor, after, size)

    async def _send_output(self, method: str, params: Params) -> OutputResult | None:
        """Core's answer, or None when it refused or could not be asked: the run is over either way."""
        if self._recording is not None:
            self._recording.end(method, params)
        try:
            try:
                reply = await self._connection.ask(method, params, plain=_is_plain(params))
            except FrameTooLarge as error:
                # Core would close the connection on it, and the same run would come back for ever.
                reply = await self._connection.ask(*thrown_output(self.run_id, None, error.message))
            except HarnessApiError as error:
                if error.code != "invalid" or not _too_deep(params):
                    raise
                # Core can't read what others can, and the same run would come back for ever.
                reply = await self._connection.ask(*thrown_output(self.run_id, None, _TOO_DEEP))
        except HarnessApiError as error:
            get_logger().debug("harness_output_refused", runId=self.run_id, error=error.message)
            return None
        result: OutputResult = reply.result
        return result


def _is_plain(params: Params) -> bool:
    """Whether orjson may write an output; its entries are text already."""
    return is_plain({name: value for name, value in params.items() if name != "transcript"})


def _too_deep(params: Params) -> bool:
    """Whether the frame of an output nests deeper than a reader of frames has to follow (harness-api 2.2)."""
    return 1 + depth_of(dumps_bytes(params)) > MAX_DEPTH


def _output_due(
    run_id: str, end: SegmentResult | _Thrown, before: Sequence[Entry]
) -> Callable[[], tuple[str, Params]]:
    """What would be reported of a run that is given back, made when somebody wants to see it."""
    if isinstance(end, _Thrown):
        return lambda: thrown_output(run_id, end.code, end.message)
    return lambda: turn_output(run_id, end, before)
