"""Calls, scripts and the ways to reach an executor: in one process, over a Unix socket, over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2, model_executor_pb2, model_executor_pb2_grpc

from services.model_executor.executor import CallAborted, Draining, ModelExecutor
from services.model_executor.routes import ModelCall, ScriptedRoute
from services.model_executor.script import read_script
from services.model_executor.service import ModelExecutorService
from tests.common.support import served

CANCEL = common_pb2.ABORT_KIND_CANCEL


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*texts: str) -> dict[str, Any]:
    return {"kind": "message", "role": "user", "content": [text(one) for one in texts]}


def assistant(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "message", "role": "assistant", "content": list(parts)}


def tool_result(value: str, call_id: str = "c1") -> dict[str, Any]:
    return {
        "kind": "tool-result",
        "toolCallId": call_id,
        "toolName": "t",
        "status": "completed",
        "content": [text(value)],
    }


def document(*prompt: Any, tools: tuple[str, ...] = ()) -> str:
    declared = [{"name": name, "inputSchema": {}} for name in tools]
    return json.dumps({"executionId": "x", "prompt": list(prompt), "tools": declared})


def call_of(call: str, **changes: Any) -> ModelCall:
    values: dict[str, Any] = {
        "tenant_id": "t",
        "session_id": "s",
        "turn_id": "turn",
        "agent_id": "agent",
        "effect_id": "e",
        "invocation_id": "inv",
        "epoch": 1,
        "text": call,
    }
    return ModelCall(**values | changes)


def route_of(*answers: Any) -> ScriptedRoute:
    return ScriptedRoute(read_script(json.dumps({"answers": list(answers)})))


class Ticker:
    """A sleep that the test ends, and a clock that it moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeping: list[float] = []
        self.wake = asyncio.Event()
        self.asleep = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeping.append(seconds)
        self.asleep.set()
        await self.wake.wait()


class Caller(Protocol):
    async def call(self, call: ModelCall) -> Any: ...
    async def cancel(self, call: ModelCall) -> str: ...


class InProcess:
    """The executor itself."""

    def __init__(self, executor: ModelExecutor) -> None:
        self._executor = executor

    async def call(self, call: ModelCall) -> Any:
        return json.loads(await self._executor.call(call))

    async def cancel(self, call: ModelCall) -> str:
        from services.common.calls import WorkKey

        return self._executor.cancel(WorkKey(call.tenant_id, call.session_id, call.effect_id), CANCEL)


class OverGrpc:
    """The same over a channel."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Any) -> None:
        self._stub = model_executor_pb2_grpc.ModelExecutorStub(channel)
        self._metadata = metadata

    async def call(self, call: ModelCall) -> Any:
        try:
            reply = await self._stub.Call(request_of(call), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise Draining from None
            raise
        if reply.WhichOneof("result") == "aborted":
            raise CallAborted(reply.aborted.kind)
        return json.loads(reply.outcome.text)

    async def cancel(self, call: ModelCall) -> str:
        reply = await self._stub.Cancel(
            common_pb2.CancelRequest(effect=request_of(call).effect, kind=CANCEL), metadata=self._metadata
        )
        name = common_pb2.CancelReply.State.Name(reply.state)
        return name.removeprefix("STATE_").lower().replace("_", " ")


def request_of(call: ModelCall) -> model_executor_pb2.ModelCallRequest:
    return model_executor_pb2.ModelCallRequest(
        effect=common_pb2.EffectRef(
            tenant_id=call.tenant_id,
            session_id=call.session_id,
            turn_id=call.turn_id,
            effect_id=call.effect_id,
            agent_id=call.agent_id,
            epoch=call.epoch,
        ),
        invocation_id=call.invocation_id,
        call=common_pb2.Json(text=call.text),
        fixture=call.fixture,
    )


WAYS = ("in process", "unix socket", "tcp")


@contextlib.asynccontextmanager
async def reached(way: str, executor: ModelExecutor) -> AsyncIterator[Caller]:
    """A caller of an executor by one of the ways."""
    if way == "in process":
        yield InProcess(executor)
        await executor.close()
        return
    listen = "127.0.0.1:0" if way == "tcp" else None
    async with served(ModelExecutorService(executor), listen=listen, stop_grace_ms=500) as port:
        yield OverGrpc(port.channel, port.metadata)
