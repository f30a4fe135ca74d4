"""Resolves one effect after another at core and at the executors (harness-api 6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from msgspec import UNSET

from gateway.connection import CallEnd, Connection, Reply
from gateway.engine.contract import (
    AbortedEffect,
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    Uncertain,
)
from gateway.executors.contract import (
    AbortKind,
    AbortSignal,
    ExecutionFailed,
    Executors,
    RunAborted,
    RunContext,
)
from gateway.runs.holds import Holds, Resolution
from gateway.runs.phases import EFFECT_STEPS, EffectPhase, next_phase
from gateway.tasks import Tasks
from protocol.errors import HarnessApiError
from protocol.jsjson import JsonValue, Parsed
from protocol.methods import EffectCompleted, EffectExecute, EffectPending, Outcome
from services.common import metrics
from services.common.logs import error_text, get_logger, trace_context
from services.common.telemetry import Telemetry

HELD_KINDS: Final = frozenset({"tool", "hook", "fn", "verify"})
"""Kinds whose pending effects a run may wait for: an Action answers them soon, an agent does not."""

_FAULT: Final = "The harness failed to execute the effect"

_ANSWERS: Final[dict[type[Answer], str]] = {
    Completed: "completed",
    Pending: "pending",
    Uncertain: "uncertain",
    HostError: "failed",
    AbortedEffect: "aborted",
}
"""What an answer to the engine is called in facts."""


@dataclass(slots=True)
class EffectPorts:
    """What resolving the effects of one run needs.

    `hold_s` says how many seconds a pending Action may be waited for now; 0 or less means not at all.
    `context` holds the run's context variables, for the tasks that execute.
    """

    connection: Connection
    run: RunContext
    signal: AbortSignal
    holds: Holds
    executors: Executors
    tasks: Tasks
    hold_s: Callable[[], float | None]
    context: Context
    telemetry: Telemetry

    async def ask(self, method: str, params: JsonValue, *, plain: bool = False) -> Reply:
        """A request about this run. Raises RunAborted for any failure once the run is aborted, else
        HarnessApiError."""
        try:
            return await self.connection.ask(method, params, plain=plain)
        except HarnessApiError:
            self.signal.raise_if_set()
            raise


class Effects:
    """The effects of one run."""

    def __init__(self, ports: EffectPorts) -> None:
        self._ports = ports
        self._open: dict[_Effect, None] = {}
        self._done: dict[tuple[str, str], int] = {}

    def ask(self, request: EffectRequest, answered: Callable[[Answer], None]) -> None:
        """Starts to resolve an effect: its intent is sent before this returns."""

        def ended(answer: Answer) -> None:
            del self._open[effect]
            key = (request.kind, _ANSWERS[type(answer)])
            self._done[key] = self._done.get(key, 0) + 1
            answered(answer)

        effect = _Effect(self._ports, request, ended)
        self._open[effect] = None
        effect.begin()

    def phases(self) -> dict[str, str]:
        """Where each open effect stands, by effect id."""
        return {effect.effect_id: str(effect.phase) for effect in self._open}

    def facts(self) -> list[dict[str, JsonValue]]:
        """What may be shown of each open effect: id, kind, phase and age."""
        now = time.monotonic()
        return [
            {
                "effectId": effect.effect_id,
                "kind": effect.kind,
                "phase": str(effect.phase),
                "ageMs": round((now - effect.asked_at) * 1000),
            }
            for effect in self._open
        ]

    def done(self) -> list[dict[str, JsonValue]]:
        """How many effects of each kind the engine got which answer to."""
        return [
            {"kind": kind, "outcome": outcome, "count": count}
            for (kind, outcome), count in self._done.items()
        ]


class _Effect:
    """One effect's life; see `phases`."""

    __slots__ = ("_answered", "_ports", "_request", "asked_at", "phase")

    def __init__(
        self, ports: EffectPorts, request: EffectRequest, answered: Callable[[Answer], None]
    ) -> None:
        self._ports = ports
        self._request = request
        self._answered = answered
        self.phase = EffectPhase.NEW
        self.asked_at = time.monotonic()

    @property
    def effect_id(self) -> str:
        """Its id; a flow may ask for one id more than once at a time."""
        return self._request.effect_id

    @property
    def kind(self) -> str:
        """Its kind."""
        return self._request.kind

    def _enter(self, phase: EffectPhase) -> None:
        self.phase = next_phase(EFFECT_STEPS, self.phase, phase)

    def _answer(self, answer: Answer) -> None:
        self._enter(EffectPhase.ANSWERED)
        self._answered(answer)

    def _fail(self, code: str | None, message: str) -> None:
        """The effect fails in the host; an abort's reason comes before any other."""
        abort = self._ports.signal.abort
        self._answer(HostError(code, message) if abort is None else AbortedEffect(abort))

    # Asking

    def begin(self) -> None:
        """Sends the intent, unless the run is aborted."""
        abort = self._ports.signal.abort
        if abort is not None:
            self._answer(AbortedEffect(abort))
            return
        params: dict[str, Any] = {
            "runId": self._ports.run.run_id,
            "effect": self._request.document,
            "requestHash": self._request.request_hash,
        }
        # A model's intent has no input: nothing in it but ids.
        plain = self._request.plain or self._request.kind == "model"
        try:
            self._ports.connection.call("effect.intent", params, self._intent_ended, plain=plain)
        except HarnessApiError as error:
            self._fail(error.code, error.message)
        else:
            self._enter(EffectPhase.ASKING)

    def _intent_ended(self, end: CallEnd) -> None:
        if isinstance(end, HarnessApiError):
            self._fail(end.code, end.message)
            return
        match end.result:
            case EffectCompleted(outcome=outcome):
                self._answer(_completed(outcome, end.plain))
            case EffectPending():
                self._hold()
            case EffectExecute(rejoin=rejoin):
                self._enter(EffectPhase.EXECUTING)
                context = self._ports.context
                if self._ports.telemetry.enabled:
                    # Each execution sets its own span, so each has a copy of the run's variables.
                    context = context.copy()
                self._ports.tasks.start(self._execute(rejoin is True), context=context)
            case _:
                self._answer(Uncertain())

    # Holding

    def _hold(self) -> None:
        seconds = self._ports.hold_s() if self._request.kind in HELD_KINDS else None
        if seconds is None:
            self._answer(Pending())
            return
        self._enter(EffectPhase.HOLDING)
        if seconds <= 0 or self._ports.signal.abort is not None:
            self._held(None)
        else:
            self._ports.holds.wait(self._request.effect_id, seconds, self._held)

    def _held(self, resolution: Resolution | None) -> None:
        abort = self._ports.signal.abort
        if abort is not None:
            self._answer(AbortedEffect(abort))
        elif resolution is None:
            self._answer(Pending())
        else:
            self._answer(Completed(resolution.outcome, resolution.plain))

    # Executing

    async def _execute(self, rejoin: bool) -> None:
        try:
            answer = await self._executed(rejoin)
        except HarnessApiError as error:
            self._fail(error.code, error.message)
        except (RunAborted, ExecutionFailed) as error:
            self._fail(None, str(error))
        except asyncio.CancelledError:
            # The process is at its end; the engine must not wait for an answer that never comes.
            self._fail(None, "The harness is stopping")
            raise
        else:
            self._answer(answer)
        finally:
            if self.phase is not EffectPhase.ANSWERED:
                # A fault of ours, which the task's owner logs: without an answer the run would never end.
                self._fail(None, _FAULT)

    async def _executed(self, rejoin: bool) -> Answer:
        """Raises RunAborted, ExecutionFailed and HarnessApiError for what only the engine is told."""
        try:
            value = await (self._timed_value(rejoin) if metrics.current.enabled else self._value(rejoin))
            self._enter(EffectPhase.REPORTING_VALUE)
            return await self._report({"value": value.value}, value.plain)
        except (RunAborted, ExecutionFailed, HarnessApiError) as error:
            if isinstance(error, HarnessApiError) and error.code == "ownership_lost":
                raise
            if not await self._settle_recoverable():
                raise
            message = str(error)
        self._enter(EffectPhase.REPORTING_ERROR)
        return await self._report({"error": message}, False)

    async def _timed_value(self, rejoin: bool) -> Parsed:
        """`_value`, with its time and how it ended as a metric."""
        began, outcome = time.perf_counter(), "failed"
        try:
            value = await self._value(rejoin)
            document = value.value
            failed = isinstance(document, dict) and document.get("kind") == "failed"
            outcome = "failed" if failed else "completed"
            return value
        except (RunAborted, asyncio.CancelledError):
            outcome = "aborted"
            raise
        finally:
            metrics.current.record(
                "nylorun.harness.effect.duration",
                time.perf_counter() - began,
                {"nylorun.effect.kind": self._request.kind, "nylorun.effect.outcome": outcome},
            )

    async def _value(self, rejoin: bool) -> Parsed:
        """What executing gives. Raises RunAborted and ExecutionFailed."""
        ports, request = self._ports, self._request
        executor = ports.executors.model if request.kind == "model" else ports.executors.tools
        try:
            if not ports.telemetry.enabled:
                return await executor.execute(request, ports.run, ports.signal, rejoin)
            attributes = {"nylorun.effect.id": request.effect_id, "nylorun.effect.kind": request.kind}
            with ports.telemetry.span("harness.effect", attributes, trace_context.get()) as parent:
                trace_context.set(parent)
                return await executor.execute(request, ports.run, ports.signal, rejoin)
        except (RunAborted, ExecutionFailed):
            raise
        except Exception as error:  # noqa: BLE001  (a fault of an executor is this effect's, not the run's)
            get_logger().error("harness_effect_failed", effectKind=request.kind, error=error_text(error))
            raise ExecutionFailed(_FAULT) from None

    async def _settle_recoverable(self) -> bool:
        """Whether the failed effect is to be reported: not when the next run will join it. A recoverable
        tool call of a cancelled turn is cancelled at its gate first."""
        ports, request = self._ports, self._request
        is_model = request.kind == "model"
        abort = ports.signal.abort
        if abort is None or abort.kind not in (AbortKind.SHUTDOWN, AbortKind.CANCEL):
            return True
        recovers = (
            ports.executors.model.recovers()
            if is_model
            else ports.executors.tools.recovers(request, ports.run)
        )
        if recovers and abort.kind is AbortKind.SHUTDOWN:
            return False
        if recovers and not is_model:
            await ports.executors.tools.cancel(request, ports.run)
        return True

    async def _report(self, what: dict[str, JsonValue], plain: bool) -> Answer:
        params: dict[str, JsonValue] = {
            "runId": self._ports.run.run_id,
            "effectId": self._request.effect_id,
            **what,
        }
        reply = await self._ports.ask("effect.outcome", params, plain=plain)
        if isinstance(reply.result, EffectCompleted):
            return _completed(reply.result.outcome, reply.plain)
        return Uncertain()


def outcome_document(outcome: Outcome) -> dict[str, JsonValue]:
    """An outcome as the engine takes it: {value, statePatch?}."""
    document: dict[str, JsonValue] = {"value": outcome.value}
    if outcome.state_patch is not UNSET:
        document["statePatch"] = outcome.state_patch
    return document


def _completed(outcome: Outcome, plain: bool) -> Completed:
    return Completed(outcome_document(outcome), plain)
