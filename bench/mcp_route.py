"""A call of a stdio MCP tool on its three ways: the pool in this process, over gRPC, and a bare stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import common_pb2, mcp_pool_pb2

from bench.echo_client import EchoClient
from bench.run_context import HASH, SESSION, TENANT, run_context, tool_effect
from bench.turns import Variant
from gateway.executors.contract import AbortSignal, Executors
from gateway.executors.effects import effect_ref, member
from protocol.jsjson import JsonValue, Parsed, dumps, parse
from services.common.effect_run import AbortLatch
from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.executor import McpExecutor, ToolCallWork, read_arguments
from services.mcp_pool.main import make_executor
from services.mcp_pool.session import Session
from services.mcp_pool.settings import read_settings

CAPABILITY: Final = "echo"
TOOL: Final = "echo__echo"
_SERVER: Final = "echo"


def declaration() -> dict[str, JsonValue]:
    """The benchmark's own server."""
    script = str(Path(__file__).with_name("mcp_echo.py"))
    return {"name": _SERVER, "type": "stdio", "command": sys.executable, "args": ["-S", "-I", script]}


def manifest() -> dict[str, JsonValue]:
    """An agent with that server."""
    capability: dict[str, JsonValue] = {
        "id": CAPABILITY,
        "type": "agent",
        "mcpServers": {_SERVER: declaration()},
    }
    return {"manifestSchemaVersion": 4, "id": "bench", "capabilities": [capability]}


class InProcessMcp:
    """The product's pool called directly."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._executor: McpExecutor = make_executor(read_settings(environ))
        self._server = DeclaredServer(ServerName(None, CAPABILITY, _SERVER), declaration())
        self._session = Session(TENANT, SESSION)
        self._signal = AbortLatch()

    async def call(self, effect_id: str, input_: JsonValue) -> Parsed:
        """The outcome document."""
        arguments = await read_arguments(dumps(input_))
        work = ToolCallWork(self._session, effect_id, self._server, "echo", arguments)
        return parse(await self._executor.call(work, self._signal))

    async def close(self) -> None:
        """Ends the pool and its server."""
        await self._executor.close()


async def discover(executors: Executors) -> JsonValue:
    """The snapshot that a run of the agent has; the pool's server is open afterwards."""
    found = await executors.mcp.discover(run_context(manifest()), HASH, AbortSignal())
    outcomes = [member(diagnostic, "outcome") for diagnostic in found.diagnostics]
    assert outcomes == ["connected"], found.diagnostics
    return found.snapshot


def variants(
    size: int, here: InProcessMcp, executors: Executors, snapshot: JsonValue, echo: EchoClient
) -> dict[str, Variant]:
    """The three ways of a call of this size."""
    run, signal = run_context(manifest(), snapshot=snapshot), AbortSignal()
    input_: JsonValue = {"text": "x" * (size - len('{"text":""}'))}
    request = mcp_pool_pb2.ToolCall(
        effect=effect_ref(tool_effect(CAPABILITY, TOOL, input_), run),
        server=mcp_pool_pb2.ServerDeclaration(
            capability_id=CAPABILITY,
            server_name=_SERVER,
            declaration=common_pb2.Json(text=dumps(declaration())),
        ),
        server_tool_name="echo",
        arguments=common_pb2.Json(text=dumps(input_)),
    )

    async def in_process() -> None:
        effect = tool_effect(CAPABILITY, TOOL, input_)
        _check(await here.call(effect.effect_id, input_), input_)

    async def over_grpc() -> None:
        effect = tool_effect(CAPABILITY, TOOL, input_)
        _check(await executors.tools.execute(effect, run, signal, False), input_)

    async def bare() -> None:
        assert len(await echo.mcp(request)) == size

    return {"in_process": in_process, "call": over_grpc, "bare": bare}


def _check(outcome: Parsed, input_: Any) -> None:
    value: Any = outcome.value
    assert value["kind"] == "completed", value
    assert input_["text"] in (value["output"], *_texts(value["output"]))


def _texts(output: Any) -> list[str]:
    content = output.get("content", []) if isinstance(output, dict) else output
    return [part["text"] for part in content] if isinstance(content, list) else []
