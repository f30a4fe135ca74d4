"""The gRPC face of the model executor: it checks, forwards, and decides nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2, common_pb2, model_executor_pb2, model_executor_pb2_grpc

from services.common.calls import WorkKey
from services.common.errors import invalid, unavailable
from services.common.metadata import ACCEPTED, LIMIT_MS, run_token
from services.common.version import version
from services.common.work import WorkBook
from services.model_executor.executor import CallAborted, Draining, ModelExecutor
from services.model_executor.routes import ModelCall, Settled

_STATES: Final = {
    "not here": common_pb2.CancelReply.STATE_NOT_HERE,
    "stopping": common_pb2.CancelReply.STATE_STOPPING,
    "finished": common_pb2.CancelReply.STATE_FINISHED,
}
_MAX_ID: Final = 512
_IDS: Final = ("tenant_id", "session_id", "effect_id")


class _Taken:
    """A request that is taken out once; what is left is small."""

    __slots__ = ("_request",)

    def __init__(self, request: model_executor_pb2.ModelCallRequest) -> None:
        self._request: model_executor_pb2.ModelCallRequest | None = request

    @classmethod
    def read(cls, wire: bytes) -> _Taken:
        """A request from its bytes."""
        return cls(model_executor_pb2.ModelCallRequest.FromString(wire))

    def take(self) -> model_executor_pb2.ModelCallRequest:
        """The request."""
        request, self._request = self._request, None
        assert request is not None, "a request is taken once"
        return request


class ModelExecutorService(model_executor_pb2_grpc.ModelExecutorServicer):
    """`whippletree.v1.ModelExecutor` over one executor."""

    full_name = "whippletree.v1.ModelExecutor"
    service = "model-executor"

    def __init__(self, executor: ModelExecutor, instance: str | None = None) -> None:
        self._executor = executor
        self._instance = instance or secrets.token_hex(8)

    @property
    def instance(self) -> str:
        """What the store of started calls names this process by."""
        return self._instance

    @property
    def work(self) -> WorkBook:
        """The executor's book."""
        return self._executor.work

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its handlers."""
        model_executor_pb2_grpc.add_ModelExecutorServicer_to_server(self, server)
        # gRPC keeps a request for as long as its handler runs: it gets something that can be emptied.
        call = grpc.unary_unary_rpc_method_handler(
            self._call,
            request_deserializer=_Taken.read,
            response_serializer=model_executor_pb2.ModelCallReply.SerializeToString,
        )
        cast(Any, server).add_registered_method_handlers(self.full_name, {"Call": call})

    def facts(self) -> Mapping[str, str]:
        """Which route answers."""
        route = self._executor.route
        return {
            "route": route.name,
            "recovers": "true" if route.recovers else "false",
            "limit_ms": str(route.limit_ms),
        }

    def in_flight(self) -> Sequence[admin_pb2.CallInFlight]:
        """Calls in flight."""
        return self._executor.work.in_flight()

    async def stop_taking(self) -> None:
        """Refuses new calls."""
        self._executor.stop_taking()

    async def close(self) -> None:
        """Ends what runs."""
        await self._executor.close()

    async def Describe(
        self, request: model_executor_pb2.ModelDescribeRequest, context: Any
    ) -> model_executor_pb2.ModelDescribeReply:
        """The route."""
        route = self._executor.route
        return model_executor_pb2.ModelDescribeReply(
            route=route.name, recovers=route.recovers, version=version()
        )

    async def Call(
        self, request: model_executor_pb2.ModelCallRequest, context: Any
    ) -> model_executor_pb2.ModelCallReply:
        """One call."""
        return await self._answer(_read_call(request, _token()), context)

    async def _call(self, taken: _Taken, context: Any) -> model_executor_pb2.ModelCallReply:
        return await self._answer(_read_call(taken.take(), _token()), context)

    async def _answer(self, call: ModelCall, context: Any) -> model_executor_pb2.ModelCallReply:
        executor = self._executor
        try:
            entered = executor.enter(call)
        except Draining:
            raise unavailable("This model-executor is draining.") from None
        limit_ms = executor.limit_ms(call)
        # The document may be large, and this waits for minutes.
        del call
        await context.send_initial_metadata(((ACCEPTED, "1"), (LIMIT_MS, str(limit_ms))))
        try:
            settled = Settled(entered) if isinstance(entered, str) else await executor.settled(entered)
        except CallAborted as aborted:
            return model_executor_pb2.ModelCallReply(aborted=common_pb2.Aborted(kind=aborted.kind))  # type: ignore[arg-type]
        if settled.elsewhere is not None:
            there = settled.elsewhere
            return model_executor_pb2.ModelCallReply(
                elsewhere=model_executor_pb2.Elsewhere(instance=there.instance, address=there.address)
            )
        return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text=settled.outcome))

    async def Cancel(self, request: common_pb2.CancelRequest, context: Any) -> common_pb2.CancelReply:
        """Stops a call."""
        effect = request.effect
        key = WorkKey(effect.tenant_id, effect.session_id, effect.effect_id)
        state = await self._executor.stop(key, request.kind, _token())
        return common_pb2.CancelReply(state=_STATES[state])

    async def PutGrant(
        self, request: model_executor_pb2.ModelGrantRequest, context: Any
    ) -> model_executor_pb2.ModelGrantReply:
        """A renewed run token."""
        kept = self._executor.renew(request.tenant_id, request.session_id, _token())
        return model_executor_pb2.ModelGrantReply(kept=kept)


def _token() -> str | None:
    return run_token.get() or None


def _read_call(request: model_executor_pb2.ModelCallRequest, token: str | None) -> ModelCall:
    effect = request.effect
    call = ModelCall(
        tenant_id=effect.tenant_id,
        session_id=effect.session_id,
        turn_id=effect.turn_id,
        agent_id=effect.agent_id,
        effect_id=effect.effect_id,
        invocation_id=request.invocation_id,
        epoch=effect.epoch,
        text=request.call.text,
        fixture=request.fixture,
        rejoin=request.rejoin,
        token=token,
    )
    if not (_is_id(call.tenant_id) and _is_id(call.session_id) and _is_id(call.effect_id)):
        name = next(name for name in _IDS if not _is_id(getattr(call, name)))
        raise invalid(f"effect.{name} must have 1 to {_MAX_ID} characters.")
    if not call.invocation_id:
        raise invalid("invocation_id is missing.")
    return call


def _is_id(value: str) -> bool:
    return 0 < len(value) <= _MAX_ID
