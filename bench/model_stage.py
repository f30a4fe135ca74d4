"""Model-executors on real routes, with a provider behind them that answers at once, for benchmarks."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import aiohttp
import grpc
from whippletree.v1 import common_pb2, model_executor_pb2, model_executor_pb2_grpc

from bench.environment import spec_of
from bench.processes import Child, child, helper
from cli.ports import HOST
from cli.stack import MODEL, StackPlan
from services.common.channel import bearer, open_channel
from services.common.metadata import AFFINITY, RUN_TOKEN, Metadata, affinity_of

GATE: Final = "gate"
DIRECT: Final = "direct"
TOKEN: Final = "bench-run-token"
TENANT: Final = "tn_bench"
MODEL_ID: Final = "p/m"
_numbers = itertools.count()
_HELD_SESSIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Provider:
    """The helper process that stands for providers and for a gate."""

    child: Child
    url: str

    async def counts(self, http: aiohttp.ClientSession) -> dict[str, int]:
        """What happened there."""
        async with http.get(f"{self.url}/counts") as answer:
            found: dict[str, int] = await answer.json()
            return found

    async def release(self, http: aiohttp.ClientSession) -> None:
        """Answers everything that is held."""
        async with http.post(f"{self.url}/release") as answer:
            await answer.read()


class Executor:
    """A model-executor's process, called as cheaply as a client can."""

    def __init__(self, started: Child, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        self.pid = started.pid
        self._channel = channel
        self._stub = model_executor_pb2_grpc.ModelExecutorStub(channel)
        self._metadata = metadata

    async def call(self, text: str) -> str:
        """One call of a fresh effect id; its outcome's text."""
        reply = await self._stub.Call(request_of(text), metadata=self._metadata)
        return reply.outcome.text

    def start(self, text: str, number: int) -> Any:
        """A call that is not waited for, of an effect that `cancel` knows."""
        return self._stub.Call(_held_request(text, number), metadata=self._metadata)

    async def cancel(self, number: int) -> None:
        """Cancels a started call."""
        request = common_pb2.CancelRequest(
            effect=_held_request("", number).effect, kind=common_pb2.ABORT_KIND_CANCEL
        )
        await self._stub.Cancel(request, metadata=self._metadata)


def request_of(text: str, effect_id: str | None = None, session_id: str = "ses_bench") -> Any:
    """A call's request."""
    return model_executor_pb2.ModelCallRequest(
        effect=common_pb2.EffectRef(
            tenant_id=TENANT,
            session_id=session_id,
            turn_id="t_bench",
            agent_id="bench",
            effect_id=effect_id or f"t_bench:0:model:{next(_numbers)}",
            epoch=1,
        ),
        invocation_id="inv_bench",
        call=common_pb2.Json(text=text),
    )


def _held_request(text: str, number: int) -> Any:
    return request_of(text, f"held:{number}", f"ses_{number % _HELD_SESSIONS}")


def metadata_of(plan: StackPlan) -> Metadata:
    """What a gateway sends with a call."""
    token = plan.state.token_file(MODEL).read_text(encoding="ascii").strip()
    return (*bearer(token), (AFFINITY, affinity_of("ses_bench")), (RUN_TOKEN, TOKEN))


async def start_provider(stack: AsyncExitStack, size: int) -> Provider:
    """A provider whose answers have this size."""
    started = await stack.enter_async_context(child("provider", helper("provider_server", str(size)), {}))
    return Provider(started, (await started.ready("ready"))["url"])


async def start_executor(
    stack: AsyncExitStack, plan: StackPlan, route: str, provider: Provider, path: str = "/v1"
) -> tuple[Executor, str]:
    """A model-executor on a route to the provider, and its address."""
    address = f"{HOST}:{_free_port()}"
    started = await stack.enter_async_context(
        child(f"{MODEL} {route}", *_command(plan, route, provider, path, address))
    )
    await started.ready("grpc_serving")
    channel = open_channel(address)
    stack.push_async_callback(channel.close, None)
    return Executor(started, channel, metadata_of(plan)), address


def _command(
    plan: StackPlan, route: str, provider: Provider, path: str, address: str
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    spec = spec_of(plan, MODEL)
    settings = {
        "NYLORUN_GRPC_LISTEN": address,
        "WHIPPLETREE_MODEL_ROUTE": route,
        "NYLORUN_GATES_URL": provider.url,
    }
    if route == DIRECT:
        config = plan.state.path / f"model-{address.rpartition(':')[2]}.toml"
        config.write_text(
            f'default = {json.dumps(MODEL_ID)}\n[providers.p]\napi = "openai-completions"\n'
            f"base_url = {json.dumps(provider.url + path)}\n[retry]\nattempts = 1\n",
            encoding="utf-8",
        )
        settings["WHIPPLETREE_MODEL_CONFIG"] = str(config)
    return spec.argv, {**spec.environ, **settings}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def all_of(calls: list[Any]) -> list[Any]:
    """Waits for calls; what they raise stands in the list."""
    return await asyncio.gather(*calls, return_exceptions=True)
