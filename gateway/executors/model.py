"""Model calls over gRPC (model-executor 4, 6 and 12). A failure of any kind is an outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2, model_executor_pb2

from gateway.engine.contract import Abort, AbortKind, EffectRequest
from gateway.executors.call_metadata import plain_metadata, run_metadata
from gateway.executors.cancels import cancel_effect
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunAborted, RunContext
from gateway.executors.effects import SURROGATE_TEXT, fill_effect_ref, js_string, member
from gateway.executors.pins import pinned
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.resend import Resends
from gateway.executors.status import RESENT, CallFailed, Meaning
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import UnaryMethod, call_unary
from gateway.executors.written_call import WrittenCall
from protocol.jsjson import JsonError, JsonValue, Parsed, parse
from protocol.model_errors import ErrorClass, classify_text, match_text
from services.common.logs import get_logger

FULL_NAME: Final = "whippletree.v1.ModelExecutor"
SERVICE: Final = "model-executor"
_CALL: Final = UnaryMethod(f"/{FULL_NAME}/Call", WrittenCall, model_executor_pb2.ModelCallReply)
_GRANT: Final = UnaryMethod(
    f"/{FULL_NAME}/PutGrant", model_executor_pb2.ModelGrantRequest, model_executor_pb2.ModelGrantReply
)
_DIRECT: Final = "direct"
_GATE: Final = "gate"
ELSEWHERE_TEXT: Final = (
    "The call runs at another model-executor that can't be reached; the provider may have billed it."
)


@dataclass(slots=True, eq=False)
class _Session:
    """Where a session's model calls are in flight: how many at each replica."""

    tenant_id: str
    calls: Counter[Replica]


class GrpcModelExecutor:
    """Executes effects of kind `model` at the model-executors.

    Calls go to the replica with the fewest in flight; on the direct route to the session's own, so that a
    re-sent call meets its first attempt.
    """

    def __init__(self, replicas: ReplicaSet, timings: ExecutorTimings) -> None:
        self._replicas = replicas
        self._timings = timings
        self._sessions: dict[str, _Session] = {}

    def recovers(self) -> bool:
        """What the executors' route says; true until one has said otherwise."""
        return all(replica.facts.get("recovers", "true") == "true" for replica in self._replicas.replicas)

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        """The outcome document. Raises RunAborted, after the route's cancel for kind `cancel`."""
        try:
            request = self._request(effect, run, rejoin)
        except UnicodeEncodeError:
            return _failure("invalid_request", SURROGATE_TEXT, retryable=False)
        if signal.abort is not None:
            await self._cancel_early(request, run, signal.abort)
            raise RunAborted(signal.abort)
        resends = Resends(self._replicas, self._timings)
        once = False
        """Whoever had it last may have sent it to a provider, and must not be asked again."""

        async def attempt(replica: Replica) -> Parsed:
            nonlocal once
            once = replica.facts.get("route") == _DIRECT and not run.fixture_model and not rejoin
            if once and replica.channel.get_state(True) is not grpc.ChannelConnectivity.READY:
                # A connection that is known to be gone: the call would be lost, and nothing was sent yet.
                raise CallFailed(Meaning.NOT_STARTED, "The model-executor can't be reached.")
            return await self._attempt(replica, request, run, signal)

        try:
            return await resends.run(
                attempt,
                choose=lambda: self._choose(run, resends.failed),
                missing="No model-executor is there to take the call.",
                may_resend=lambda failure: _may_resend(failure, once),
                signal=signal,
            )
        except CallFailed as failure:
            if signal.abort is not None:
                await self._cancel_lost(request, run, signal.abort, resends.failed)
                raise RunAborted(signal.abort) from None
            return _outcome_of(failure)

    async def _attempt(
        self,
        replica: Replica,
        request: WrittenCall,
        run: RunContext,
        signal: AbortSignal,
    ) -> Parsed:
        reply = await self._call(replica, request, run, signal)
        if reply.WhichOneof("result") == "elsewhere":
            # Another replica has it in flight: it is joined there. Nothing was started here.
            there = self._replicas.called(reply.elsewhere.instance, reply.elsewhere.address)
            if there is None or there is replica:
                raise CallFailed(Meaning.NOT_STARTED, ELSEWHERE_TEXT)
            get_logger().info(
                "model_call_joined_elsewhere", effectId=request.effect.effect_id, address=there.address
            )
            reply = await self._call(there, request, run, signal)
        match reply.WhichOneof("result"):
            case "elsewhere":
                raise CallFailed(Meaning.NOT_STARTED, ELSEWHERE_TEXT)
            case "aborted":
                # Somebody else cancelled it: there is no outcome to give.
                signal.raise_if_set()
                raise ExecutionFailed("The model call was cancelled.")
        try:
            return parse(reply.outcome.text)
        except JsonError:
            get_logger().error("model_answer_unreadable", effectId=request.effect.effect_id)
            text = "The model-executor's answer is not JSON."
            found = classify_text(text)
            return _failure(found.code, text, retryable=found.retryable)

    async def _call(
        self, replica: Replica, request: WrittenCall, run: RunContext, signal: AbortSignal
    ) -> model_executor_pb2.ModelCallReply:
        """One request to one replica. Raises CallFailed, or RunAborted after a cancel was told there."""
        metadata = run_metadata(replica, run)
        self._enter(replica, run)
        try:
            reply: model_executor_pb2.ModelCallReply = await call_unary(
                _CALL,
                replica,
                request,
                metadata,
                signal=signal,
                stops=_every_kind,
                timings=self._timings,
                service=SERVICE,
                within_s=replica.quick_s(),
            )
            return reply
        except RunAborted as aborted:
            if aborted.abort.kind is AbortKind.CANCEL and not run.fixture_model:
                await cancel_effect(
                    self._replicas,
                    [replica],
                    request.effect,
                    kind=common_pb2.ABORT_KIND_CANCEL,
                    metadata=metadata,
                    timings=self._timings,
                )
            raise
        finally:
            self._leave(replica, run)

    async def _cancel_lost(
        self,
        request: WrittenCall,
        run: RunContext,
        abort: Abort,
        tried: list[Replica],
    ) -> None:
        """A call that was lost may still run at any replica: all of them are told of a cancel."""
        if abort.kind is AbortKind.CANCEL and tried and not run.fixture_model:
            await cancel_effect(
                self._replicas,
                (),
                request.effect,
                kind=common_pb2.ABORT_KIND_CANCEL,
                metadata=run_metadata(tried[0], run),
                timings=self._timings,
            )

    async def _cancel_early(self, request: WrittenCall, run: RunContext, abort: Abort) -> None:
        """A call that was never sent by this run may be an earlier run's: where one recovers, a cancel goes
        there. The gate hears of it through any replica."""
        if abort.kind is not AbortKind.CANCEL or run.fixture_model:
            return
        routes = {replica.facts.get("route") for replica in self._replicas.replicas}
        if not routes & {_GATE, _DIRECT}:
            return
        idlest = self._replicas.idlest() if _GATE in routes else None
        at = self._replicas.replicas if idlest is None else [idlest]
        if at:
            await cancel_effect(
                self._replicas,
                at,
                request.effect,
                kind=common_pb2.ABORT_KIND_CANCEL,
                metadata=run_metadata(at[0], run),
                timings=self._timings,
            )

    async def put_grant(self, session_id: str, token: str) -> None:
        """Hands a renewed run token to the replicas that have gate calls of the session. Never fails."""
        session = self._sessions.get(session_id)
        if session is None or self._is_direct():
            return
        request = model_executor_pb2.ModelGrantRequest(tenant_id=session.tenant_id, session_id=session_id)

        async def put(replica: Replica) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
                await _GRANT.on(replica)(
                    request, metadata=plain_metadata(replica, session_id, token), timeout=self._timings.grant
                )

        await asyncio.gather(*(put(replica) for replica in list(session.calls)))

    def _enter(self, replica: Replica, run: RunContext) -> None:
        session = self._sessions.get(run.session_id)
        if session is None:
            session = self._sessions[run.session_id] = _Session(run.tenant_id, Counter())
        session.calls[replica] += 1

    def _leave(self, replica: Replica, run: RunContext) -> None:
        session = self._sessions[run.session_id]
        session.calls[replica] -= 1
        if not session.calls[replica]:
            del session.calls[replica]
        if not session.calls:
            del self._sessions[run.session_id]

    def _request(self, effect: EffectRequest, run: RunContext, rejoin: bool) -> WrittenCall:
        request = model_executor_pb2.ModelCallRequest(
            invocation_id=js_string(member(effect.document.get("context"), "invocationId")),
            fixture=run.fixture_model,
            rejoin=rejoin,
        )
        # In place: a message given to a constructor is copied.
        fill_effect_ref(request.effect, effect, run)
        return WrittenCall(request, (b"{}",) if effect.model_call is None else effect.model_call.parts)

    def _choose(self, run: RunContext, failed: list[Replica]) -> Replica | None:
        if self._is_direct() and not run.fixture_model:
            return pinned(self._replicas, run, failed)
        return self._replicas.idlest(failed)

    def _is_direct(self) -> bool:
        for replica in self._replicas.replicas:  # noqa: SIM110  (a generator costs more than the look)
            if replica.facts.get("route") == _DIRECT:
                return True
        return False


def _may_resend(failure: CallFailed, once: bool) -> bool:
    """A refusal always; anything else where the same id can't be billed twice."""
    return failure.meaning is Meaning.NOT_STARTED or (failure.meaning in RESENT and not once)


def _every_kind(kind: AbortKind) -> bool:
    return True


def _outcome_of(failure: CallFailed) -> Parsed:
    match failure.meaning:
        case Meaning.TOO_LARGE | Meaning.INVALID:
            return _failure("invalid_request", failure.text, retryable=False)
        case Meaning.REFUSED_US:
            return _failure("transient", failure.text, retryable=False)
        case Meaning.FAULT:
            # Without a word that says otherwise the hop failed, not the request.
            found = match_text(failure.details) or ErrorClass("transient", True)
            return _failure(found.code, failure.text, retryable=found.retryable)
        case _:
            return _failure("transient", failure.text, retryable=True)


def _failure(code: str, message: str, *, retryable: bool) -> Parsed:
    outcome: dict[str, JsonValue] = {
        "kind": "failed",
        "code": code,
        "message": message,
        "retryable": retryable,
    }
    return Parsed(outcome, plain=True)
