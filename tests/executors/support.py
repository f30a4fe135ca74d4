"""Doubles of the three services behind real gRPC ports, and a gateway's executors connected to them.

A double records what it got and counts how often work began. What it does with a call is a coroutine of
the test. `Ports` starts, stops and kills them on Unix sockets or loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import (
    common_pb2,
    mcp_pool_pb2,
    mcp_pool_pb2_grpc,
    model_executor_pb2,
    model_executor_pb2_grpc,
    sandbox_manager_pb2,
    sandbox_manager_pb2_grpc,
)

from gateway.engine.contract import Abort, AbortKind, EffectRequest, ModelCall
from gateway.executors.contract import AbortSignal, RunContext, SandboxEvent, WorkspaceCaller
from gateway.executors.factory import ConnectedExecutors, connect
from gateway.executors.timings import ExecutorTimings
from services.common.errors import not_started
from services.common.server import Port, ServerSettings
from services.common.telemetry import Telemetry
from services.common.work import WorkBook
from tests.common.support import BOUND_S, TOKEN

ACCEPTED = (("x-whippletree-accepted", "1"), ("x-whippletree-limit-ms", "5000"))

QUICK = ExecutorTimings(
    resend_for=1.5,
    resend_pauses=(0.01, 0.02, 0.05),
    silence=0.6,
    give_up=0.3,
    abort_answer=0.5,
    cancel=1.0,
    workspace=2.0,
    discover=2.0,
    describe_every=0.1,
    describe=0.5,
    watch_pause=0.02,
    watch_grace=0.1,
    resolve_every=0.1,
)
"""The real timings, scaled down."""

PATIENT = replace(
    QUICK,
    resend_for=20.0,
    silence=20.0,
    give_up=20.0,
    abort_answer=20.0,
    cancel=20.0,
    grant=20.0,
    describe=20.0,
)
"""For tests in which nothing runs out: a stall of a loaded machine is no loss."""

Behaviour = Callable[[Any, Any], Awaitable[Any]]


class Double:
    """What all doubles share: the served service's duties, and a record of calls."""

    full_name = ""
    service = ""

    def __init__(self, **facts: str) -> None:
        self.work = WorkBook()
        self.given_facts = facts
        self.calls: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.starts: list[str] = []
        self.acks: list[int] = []
        self.aborts: list[int] = []
        self.cancels: list[tuple[str, int]] = []
        self.cancel_tokens: list[str | None] = []
        self.arrived = asyncio.Event()
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.draining = False
        self.deaf = False
        """Cancel is never answered."""
        self.behaviour: Behaviour | None = None

    def facts(self) -> dict[str, str]:
        return self.given_facts

    def in_flight(self) -> list[Any]:
        return self.work.in_flight()

    async def stop_taking(self) -> None:
        self.draining = True

    async def close(self) -> None:
        return None

    def note(self, request: Any, context: Any) -> None:
        self.calls.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.arrived.set()

    async def Cancel(self, request: Any, context: Any) -> Any:
        self.cancels.append((request.effect.effect_id, request.kind))
        self.cancel_tokens.append(dict(context.invocation_metadata()).get("x-nylorun-run-token"))
        if self.deaf:
            await asyncio.Event().wait()
        return common_pb2.CancelReply(state=common_pb2.CancelReply.STATE_NOT_HERE)


class ModelDouble(Double, model_executor_pb2_grpc.ModelExecutorServicer):
    """Answers with its name unless the test says otherwise."""

    full_name = "whippletree.v1.ModelExecutor"
    service = "model-executor"

    def register(self, server: grpc.aio.Server) -> None:
        model_executor_pb2_grpc.add_ModelExecutorServicer_to_server(self, server)

    async def Call(self, request: Any, context: Any) -> Any:
        if self.draining:
            await not_started(context, "draining")
        self.note(request, context)
        if self.behaviour is not None:
            return await self.behaviour(request, context)
        return await self.answer(request, context)

    async def answer(self, request: Any, context: Any, outcome: Any = "hello") -> Any:
        await context.send_initial_metadata(ACCEPTED)
        self.starts.append(request.effect.effect_id)
        return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text=json.dumps(outcome)))


class StreamDouble(Double):
    """The handshake of stream calls, step by step as the test wants it."""

    request_type: Any
    reply_type: Any

    async def stream(self, context: Any) -> None:
        if self.draining:
            await not_started(context, "draining")
        first = await context.read()
        self.note(first.request, context)
        if self.behaviour is not None:
            await self.behaviour(first.request, context)
            return
        await context.send_initial_metadata(ACCEPTED)
        if await self.started(context, first.request):
            await context.write(
                self.end(outcome=common_pb2.Json(text='{"kind":"completed","output":"done"}'))
            )

    async def started(self, context: Any, request: Any) -> bool:
        """Waits for start and counts it."""
        message = await context.read()
        if message is grpc.aio.EOF:
            return False
        if message.WhichOneof("message") != "start":
            self.aborts.append(message.abort.kind)
            return False
        self.starts.append(request.effect.effect_id)
        self.began.set()
        return True

    async def next_abort(self, context: Any) -> int:
        message = await context.read()
        self.aborts.append(message.abort.kind)
        return message.abort.kind

    def end(self, **result: Any) -> Any:
        raise NotImplementedError


class McpDouble(StreamDouble, mcp_pool_pb2_grpc.McpPoolServicer):
    """An mcp-pool."""

    full_name = "whippletree.v1.McpPool"
    service = "mcp-pool"
    reply_type = mcp_pool_pb2.ToolCallReply

    def __init__(self, **facts: str) -> None:
        super().__init__(**facts)
        self.grants: list[Any] = []
        self.remote: Behaviour | None = None
        self.snapshot: Any = {"snapshotSchemaVersion": 1, "manifestHash": "h", "mcpTools": []}
        self.diagnostics: Any = []

    def register(self, server: grpc.aio.Server) -> None:
        mcp_pool_pb2_grpc.add_McpPoolServicer_to_server(self, server)

    async def Call(self, request: Any, context: Any) -> None:
        await self.stream(context)

    def end(self, **result: Any) -> Any:
        return mcp_pool_pb2.ToolCallReply(result=mcp_pool_pb2.ToolCallResult(**result))

    async def CallRemote(self, request: Any, context: Any) -> Any:
        self.note(request, context)
        if self.remote is not None:
            return await self.remote(request, context)
        await context.send_initial_metadata(ACCEPTED)
        return mcp_pool_pb2.ToolCallResult(
            outcome=common_pb2.Json(text='{"kind":"completed","output":"far"}')
        )

    async def Discover(self, request: Any, context: Any) -> Any:
        self.note(request, context)
        if self.remote is not None:
            await self.remote(request, context)
        return mcp_pool_pb2.DiscoverReply(
            snapshot=common_pb2.Json(text=json.dumps(self.snapshot)),
            diagnostics=common_pb2.Json(text=json.dumps(self.diagnostics)),
        )

    async def Reconnect(self, request: Any, context: Any) -> Any:
        self.note(request, context)
        return mcp_pool_pb2.ReconnectReply(diagnostics=common_pb2.Json(text=json.dumps(self.diagnostics)))

    async def PutGrant(self, request: Any, context: Any) -> Any:
        token = dict(context.invocation_metadata()).get("x-nylorun-run-token")
        self.grants.append((request.tenant_id, request.session_id, request.epoch, request.expires_at, token))
        return mcp_pool_pb2.PutGrantReply(kept=True)


class SandboxDouble(StreamDouble, sandbox_manager_pb2_grpc.SandboxManagerServicer):
    """A sandbox-manager shard."""

    full_name = "whippletree.v1.SandboxManager"
    service = "sandbox-manager"
    reply_type = sandbox_manager_pb2.RunReply

    def __init__(self, **facts: str) -> None:
        super().__init__(**facts)
        self.report: Any = {"backend": "virtual"}
        self.records: list[Any] = []
        self.removed: list[Any] = []
        self.sweep_events = 0

    def register(self, server: grpc.aio.Server) -> None:
        sandbox_manager_pb2_grpc.add_SandboxManagerServicer_to_server(self, server)

    async def Run(self, request: Any, context: Any) -> None:
        await self.stream(context)

    def end(self, **result: Any) -> Any:
        return sandbox_manager_pb2.RunReply(**result)

    async def event(self, context: Any, seq: int, **changes: Any) -> None:
        """Sends an event and waits for its ack."""
        event = {
            "seq": seq,
            "session_id": "s",
            "turn_id": "turn",
            "type": "sandbox.exec",
            "payload": common_pb2.Json(text='{"tool":"bash"}'),
        }
        await context.write(
            sandbox_manager_pb2.RunReply(event=sandbox_manager_pb2.SandboxEvent(**event | changes))
        )
        self.acks.append((await context.read()).ack.seq)

    async def Report(self, request: Any, context: Any) -> Any:
        self.note(request, context)
        return sandbox_manager_pb2.ReportReply(report=common_pb2.Json(text=json.dumps(self.report)))

    async def Remove(self, request: Any, context: Any) -> Any:
        self.removed.append((request.all, list(request.keys), list(request.sandbox_ids)))
        bad = next((key for key in request.keys if not key.startswith("nylorun-t-")), "")
        return sandbox_manager_pb2.RemoveReply(invalid_key=bad)

    async def Sweep(self, request: Any, context: Any) -> None:
        begin = (await context.read()).begin
        self.calls.append(begin)
        for seq in range(1, self.sweep_events + 1):
            event = sandbox_manager_pb2.SandboxEvent(
                seq=seq, session_id="s", type="sandbox.state", payload=common_pb2.Json(text="{}")
            )
            await context.write(sandbox_manager_pb2.SweepReply(event=event))
            self.acks.append((await context.read()).ack.seq)
        await context.write(
            sandbox_manager_pb2.SweepReply(records=sandbox_manager_pb2.WorkspaceRecords(records=self.records))
        )


@dataclass(frozen=True)
class Target:
    name: str
    target: str


@dataclass
class Ports:
    """Running doubles by address. `kill` cuts every connection at once, as a SIGKILL does."""

    folder: Path
    running: dict[str, Port] = field(default_factory=dict)

    async def start(self, double: Any, address: str | None = None, token: str = TOKEN) -> str:
        """Serves a double; gives its address."""
        settings = ServerSettings(
            listen=address or f"unix:{self.folder}/{secrets.token_hex(4)}", token=token, stop_grace_ms=300
        )
        port = Port(double, settings, Telemetry())
        await port.start()
        self.running[port.address] = port
        return port.address

    async def kill(self, address: str) -> None:
        """The process is gone: no drain, no word."""
        await self.running.pop(address)._server.stop(0)

    async def stop(self, address: str) -> None:
        """A clean stop."""
        await self.running.pop(address).stop()

    async def close(self) -> None:
        for address in list(self.running):
            await self.kill(address)


@contextlib.asynccontextmanager
async def ports() -> AsyncIterator[Ports]:
    with tempfile.TemporaryDirectory(prefix="wt") as folder:
        made = Ports(Path(folder))
        try:
            yield made
        finally:
            await made.close()


@dataclass
class World:
    """Three doubles (or several of a kind) and executors connected to them."""

    ports: Ports
    connected: ConnectedExecutors
    model: ModelDouble
    mcp: McpDouble
    sandbox: SandboxDouble
    addresses: dict[str, str]

    @property
    def executors(self) -> Any:
        return self.connected.executors

    async def restart(self, double: Any, token: str = TOKEN) -> None:
        """A new process at the old address."""
        await self.ports.start(double, self.addresses[double.service], token)


@contextlib.asynccontextmanager
async def world(
    timings: ExecutorTimings = QUICK,
    *,
    way: str = "unix",
    wait: bool = True,
    bearers: Any = None,
    model_facts: dict[str, str] | None = None,
    **changes: Any,
) -> AsyncIterator[World]:
    """The doubles and a gateway's executors, all SERVING."""
    doubles = {
        "model-executor": ModelDouble(**(model_facts or {"route": "scripted", "recovers": "true"})),
        "mcp-pool": McpDouble(),
        "sandbox-manager": SandboxDouble(),
    }
    timings = replace(timings, **changes)
    async with ports() as made:
        addresses = {
            name: await made.start(double, "127.0.0.1:0" if way == "tcp" else None)
            for name, double in doubles.items()
        }
        targets = {name: [Target(name, address)] for name, address in addresses.items()}
        tokens = dict.fromkeys(doubles, TOKEN) if bearers is None else bearers
        async with connect(targets, tokens, timings=timings) as connected:
            if wait:
                async with asyncio.timeout(BOUND_S):
                    await connected.services_ready()
            yield World(
                made,
                connected,
                doubles["model-executor"],
                doubles["mcp-pool"],
                doubles["sandbox-manager"],
                addresses,
            )


STDIO = {"name": "srv", "type": "stdio", "command": "x"}
REMOTE = {"name": "far", "type": "streamable-http", "url": "https://x"}
MANIFEST: dict[str, Any] = {
    "id": "agent",
    "capabilities": [
        {"id": "tools", "mcpServers": {"srv": STDIO, "far": REMOTE}},
        {
            "id": "box",
            "sandbox": {"image": "i"},
            "tools": [{"name": "bash"}, {"name": "read"}, {"name": "other"}],
        },
    ],
}
SNAPSHOT = {
    "snapshotSchemaVersion": 1,
    "manifestHash": "h",
    "mcpTools": [
        {"capabilityId": "tools", "serverName": "srv", "serverToolName": "add", "name": "srv__add"},
        {"capabilityId": "tools", "serverName": "far", "serverToolName": "get", "name": "far__get"},
        {"capabilityId": "tools", "serverName": "gone", "serverToolName": "x", "name": "gone__x"},
    ],
}


@dataclass
class Claims:
    """What was claimed at core; `gate`, when set, holds the answer back."""

    events: list[SandboxEvent] = field(default_factory=list)
    gate: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, event: SandboxEvent) -> None:
        self.events.append(event)
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()


def run_of(**changes: Any) -> RunContext:
    token = changes.pop("run_token", "token-1")
    values: dict[str, Any] = {
        "tenant_id": "t",
        "preference": "auto",
        "run_id": "run",
        "session_id": "s",
        "turn_id": "turn",
        "epoch": 3,
        "agent_id": "agent",
        "fixture_model": False,
        "root_manifest": MANIFEST,
        "plugin_roots": {"tools": "/plugins/tools"},
        "token": token if callable(token) else lambda: token,
        "claim_event": Claims(),
        "mcp_snapshot": SNAPSHOT,
    }
    return RunContext(**values | changes)


def model_effect(effect_id: str = "e", call: str = '{"prompt":[],"tools":[]}') -> EffectRequest:
    document = {"effectId": effect_id, "kind": "model", "context": {"invocationId": "inv"}}
    return EffectRequest(effect_id, "model", document, "hash", ModelCall((call.encode(),)))


def tool_effect(name: str = "srv__add", capability: str = "tools", **changes: Any) -> EffectRequest:
    effect_id = changes.pop("effect_id", "e")
    document = {
        "effectId": effect_id,
        "kind": "tool",
        "capabilityId": capability,
        "toolName": name,
        "input": {"b": 1, "a": 2},
        **changes,
    }
    return EffectRequest(effect_id, "tool", document, "hash")


def bash_effect(**changes: Any) -> EffectRequest:
    return tool_effect("bash", "box", **{"input": {"command": "ls"}, **changes})


def caller_of(**changes: Any) -> WorkspaceCaller:
    values: dict[str, Any] = {
        "tenant_id": "t",
        "preference": "auto",
        "owner_id": "s",
        "sandbox_id": None,
        "active_turn_id": "turn",
        "claim_event": Claims(),
    }
    return WorkspaceCaller(**values | changes)


def aborted(kind: AbortKind) -> AbortSignal:
    signal = AbortSignal()
    signal.set(Abort(kind, f"aborted by {kind}"))
    return signal


def abort(signal: AbortSignal, kind: AbortKind) -> None:
    signal.set(Abort(kind, f"aborted by {kind}"))
