"""A model effect through the development core with its journal, and the floor under it.

The product's way: `effect.intent` is asked and committed, the call goes to the model-executor, the outcome is
reported and committed, all by the gateway's own code over its own connection. The floor: a WebSocket round
trip to a process that commits one row, a bare echo over gRPC, and another such round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Mapping
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from websockets.asyncio.client import ClientConnection
from whippletree.v1 import common_pb2, model_executor_pb2

from bench.echo_client import EchoClient
from bench.floor_server import INTENT
from bench.model_route import agent_of, call_of
from bench.run_context import HASH, model_effect, run_context
from bench.turns import Variant
from cli.core_client import CoreClient
from gateway.attachment import Introduction
from gateway.connection import Connection
from gateway.engine.contract import Answer, Completed, EffectRequest
from gateway.executors.contract import AbortSignal, Executors
from gateway.executors.effects import effect_ref
from gateway.harness_api.events import MessageArrived, RequestArrived
from gateway.runs.effects import EffectPorts, Effects
from gateway.runs.holds import Holds
from gateway.tasks import Tasks
from gateway.timing import Timing
from gateway.websocket import WebSocketDialer
from protocol.errors import HarnessApiError
from protocol.methods import LeaseResult
from services.common.telemetry import Telemetry


class _Deaf:
    """Core asks nothing of a run that has no workspace."""

    def request_arrived(self, request: RequestArrived) -> None:
        del request

    def request_given_up(self, request_id: int, error: HarnessApiError) -> None:
        del request_id, error

    def message_arrived(self, message: MessageArrived) -> None:
        del message

    def connection_closed(self) -> None:
        return


class HeldRun:
    """One leased run whose effects are asked by hand."""

    def __init__(self, lease: LeaseResult, effects: Effects, size: int) -> None:
        self._effects = effects
        self._call = call_of(size)
        checkpoint: Mapping[str, Any] = lease.input.checkpoint
        self._turn = f"{lease.run.turn_id}:{checkpoint['segment']}"
        self._identity = {
            "sessionId": lease.run.session_id,
            "turnId": lease.run.turn_id,
            "agentId": agent_of(size),
            "manifestHash": checkpoint["manifestHash"],
        }

    async def effect(self) -> None:
        """Asks for one model effect and waits for its committed outcome."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._effects.ask(self._request(), answered.set_result)
        answer = await answered
        assert isinstance(answer, Completed), answer

    def _request(self) -> EffectRequest:
        return model_effect(self._call, lambda local: {"effectId": f"{self._turn}:{local}", **self._identity})


@contextlib.asynccontextmanager
async def held_run(
    http_url: str, harness_url: str, token: str, executors: Executors, size: int
) -> AsyncIterator[HeldRun]:
    """A run of a new session at a development core, held until the end of the block."""
    agent = agent_of(size)
    async with CoreClient(http_url) as core:
        await core.put_agent(agent, {"manifestSchemaVersion": 4, "id": agent, "capabilities": []})
        await core.send_message(await core.create_session(agent), "go")
    timing, tasks = Timing(), Tasks()
    connection = Connection(await WebSocketDialer(timing)(harness_url, token), timing)
    connection.handler = _Deaf()
    serving = asyncio.create_task(connection.run())
    try:
        await connection.ask("hello", Introduction("bench", "1", None).params())
        lease: LeaseResult = (await connection.ask("lease", {}, plain=True)).result
        signal = AbortSignal()
        run = run_context({}, agent_id=agent)
        run.run_id, run.session_id, run.turn_id = lease.run.run_id, lease.run.session_id, lease.run.turn_id
        ports = EffectPorts(
            connection=connection,
            run=run,
            signal=signal,
            holds=Holds(signal),
            executors=executors,
            tasks=tasks,
            hold_s=lambda: None,
            context=contextvars.copy_context(),
            telemetry=Telemetry(),
        )
        yield HeldRun(lease, Effects(ports), size)
    finally:
        connection.close(1000, "done")
        async with asyncio.timeout(timing.close_handshake * 2):
            await serving


def variants(size: int, held: HeldRun, echo: EchoClient, socket: ClientConnection) -> dict[str, Variant]:
    """The product's way and the floor."""
    text = call_of(size)
    request = model_executor_pb2.ModelCallRequest(
        effect=effect_ref(model_effect(text), run_context({})),
        invocation_id="inv_bench",
        call=common_pb2.Json(text=text.decode()),
    )
    # As large as the frames of such an effect: an intent has no input, an outcome is the answer.
    intent = INTENT + "i" * 500 + HASH
    outcome = "o" * (size + 150)

    async def floor() -> None:
        await socket.send(intent)
        await socket.recv()
        await echo.unary(request)
        await socket.send(outcome)
        await socket.recv()

    return {"call": held.effect, "floor": floor}
