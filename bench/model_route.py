"""A model call on its three ways: the executor in this process, over gRPC, and a bare echo instead of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import common_pb2, model_executor_pb2

from bench.echo_client import EchoClient
from bench.run_context import model_effect, run_context
from bench.turns import Variant
from gateway.engine.contract import EffectRequest
from gateway.executors.contract import AbortSignal, ModelExecutor, RunContext
from gateway.executors.effects import effect_ref
from protocol.jsjson import Parsed, dumps, parse
from services.model_executor.executor import ModelExecutor as Executor
from services.model_executor.routes import ModelCall, ScriptedRoute
from services.model_executor.script import read_script

_CALL: Final = (
    '{"executionId":"exec_bench","prompt":[{"content":[{"text":"',
    '","type":"text"}],"kind":"message","role":"user"}],"tools":[]}',
)
_ANSWER_ROOM: Final = len('{"output":[{"type":"text","text":""}]}')


def agent_of(size: int) -> str:
    """The agent whose answers have this size."""
    return f"bench-{size}"


def call_of(size: int) -> bytes:
    """A ModelCall document of exactly so many bytes."""
    return (_CALL[0] + "q" * (size - sum(map(len, _CALL))) + _CALL[1]).encode()


def answers(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Script entries whose outcomes have exactly these sizes."""
    return [
        {
            "agent": agent_of(size),
            "answer": {"output": [{"type": "text", "text": "a" * (size - _ANSWER_ROOM)}]},
        }
        for size in sizes
    ]


class InProcessModel:
    """The product's executor behind the gateway's interface, with no wire between."""

    def __init__(self, sizes: Sequence[int]) -> None:
        script = read_script(dumps({"answers": answers(sizes)}))
        self._executor = Executor(ScriptedRoute(script))

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        """The outcome document."""
        assert effect.model_call is not None
        outcome = await self._executor.call(
            ModelCall(
                tenant_id=run.tenant_id,
                session_id=run.session_id,
                turn_id=run.turn_id,
                agent_id=run.agent_id,
                effect_id=effect.effect_id,
                invocation_id="inv_bench",
                epoch=run.epoch,
                text=effect.model_call.text().decode(),
            )
        )
        return parse(outcome)

    async def close(self) -> None:
        """Ends the executor."""
        await self._executor.close()


def variants(size: int, here: InProcessModel, remote: ModelExecutor, echo: EchoClient) -> dict[str, Variant]:
    """The three ways of a call of this size."""
    run, signal, text = run_context({}, agent_id=agent_of(size)), AbortSignal(), call_of(size)
    request = model_executor_pb2.ModelCallRequest(
        effect=effect_ref(model_effect(text), run),
        invocation_id="inv_bench",
        call=common_pb2.Json(text=text.decode()),
    )

    async def in_process() -> None:
        _check(await here.execute(model_effect(text), run, signal, False), size)

    async def over_grpc() -> None:
        _check(await remote.execute(model_effect(text), run, signal, False), size)

    async def bare() -> None:
        assert len(await echo.unary(request)) == size

    return {"in_process": in_process, "call": over_grpc, "bare": bare}


def _check(outcome: Parsed, size: int) -> None:
    value: Any = outcome.value
    assert len(value["output"][0]["text"]) == size - _ANSWER_ROOM
