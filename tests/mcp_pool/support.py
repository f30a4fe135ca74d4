"""What the tests of the MCP pool share: servers to start, quick limits, a pool, a gRPC service."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from protocol.jsjson import Parsed, RawJson, parse
from services.common.children import StopGrace
from services.common.effect_run import AbortLatch
from services.mcp_pool.connector import ServerConnector
from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.executor import McpExecutor, ToolCallWork
from services.mcp_pool.gate.client import GateClient
from services.mcp_pool.gate.connection import GateConnector
from services.mcp_pool.grants import Grants
from services.mcp_pool.launch import HarnessRoot, base_environment
from services.mcp_pool.limits import Limits
from services.mcp_pool.session import Session

SERVERS = Path(__file__).parent / "servers"
BOUND = 30
"""Seconds after which a wait of a test has failed."""

SESSION = Session("acme", "session-1")
QUICK_GRACE = StopGrace(after_stdin=0.3, after_terminate=0.3, after_kill=5)
LIMITS = Limits(grace=QUICK_GRACE)
"""The real limits, but children are not waited for as long."""


def stdio(name: str = "bad", *flags: str, record: Path | None = None, **members: Any) -> dict[str, Any]:
    """The declaration of the badly behaved server."""
    env = {"RECORD": str(record)} if record else {}
    return {
        "name": name,
        "type": "stdio",
        "command": sys.executable,
        "args": ["-S", "-I", str(SERVERS / "badly_behaved.py"), *flags],
        "env": {**env, **members.pop("env", {})},
        **members,
    }


def official(name: str = "official") -> dict[str, Any]:
    """The declaration of the server written with the official SDK."""
    return {
        "name": name,
        "type": "stdio",
        "command": sys.executable,
        "args": [str(SERVERS / "official.py")],
    }


def remote(name: str = "far") -> dict[str, Any]:
    """The declaration of a remote server."""
    return {"name": name, "type": "streamable-http", "url": "http://127.0.0.1:9/mcp"}


def declared(
    declaration: Mapping[str, Any],
    capability: str = "cap",
    agent: str | None = None,
    plugin_root: str | None = None,
) -> DeclaredServer:
    """A declaration under its name."""
    return DeclaredServer(ServerName(agent, capability, declaration["name"]), declaration, plugin_root)


def manifest(*servers: Mapping[str, Any], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A root manifest with one capability `cap`."""
    return {
        "manifestSchemaVersion": 4,
        "id": "agent",
        "capabilities": [
            {
                "id": "cap",
                "type": "agent",
                "mcpServers": {server["name"]: dict(server) for server in servers},
                "tools": tools or [],
            }
        ],
    }


def parsed(value: Any) -> Parsed:
    """A document as it comes in a request."""
    return parse(json.dumps(value))


class Harness:
    """An executor over a folder of its own."""

    def __init__(
        self,
        folder: Path,
        limits: Limits = LIMITS,
        environ: Mapping[str, str] | None = None,
        gates_url: str | None = None,
        *,
        check_tools: bool = False,
        traceparent: bool = False,
    ) -> None:
        self.root = HarnessRoot(str(folder / "root"))
        self.root.create()
        base = base_environment(environ if environ is not None else os.environ, self.root)
        self.grants = Grants()
        gate = None
        if gates_url is not None:
            gate = GateClient(gates_url, self.grants, silence_s=limits.gate_silence)
        connector = ServerConnector(
            self.root, base, limits, None if gate is None else GateConnector(gate), traceparent=traceparent
        )
        self.executor = McpExecutor(connector, limits, check_tools=check_tools, grants=self.grants, gate=gate)
        self.calls = 0

    async def call(
        self,
        declaration: Mapping[str, Any],
        tool: str,
        arguments: Any = None,
        *,
        abort: AbortLatch | None = None,
        session: Session = SESSION,
        plugin_root: str | None = None,
        agent: str | None = None,
        effect_id: str | None = None,
    ) -> Any:
        """The outcome of one call."""
        self.calls += 1
        text = json.dumps(arguments if arguments is not None else {})
        work = ToolCallWork(
            session,
            effect_id or f"e{self.calls}",
            declared(declaration, plugin_root=plugin_root, agent=agent),
            tool,
            RawJson(text),
        )
        async with asyncio.timeout(BOUND):
            return json.loads(await self.executor.call(work, abort or AbortLatch()))

    async def discover(
        self, document: Mapping[str, Any], roots: dict[str, str] | None = None, session: Session = SESSION
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Snapshot and diagnostics."""
        async with asyncio.timeout(BOUND):
            found = await self.executor.discover(session, parsed(document), "hash", roots or {})
        return json.loads(found.snapshot), json.loads(found.diagnostics)


@asynccontextmanager
async def running(
    folder: Path,
    limits: Limits = LIMITS,
    environ: Mapping[str, str] | None = None,
    gates_url: str | None = None,
    **options: bool,
) -> AsyncIterator[Harness]:
    """An executor that is closed at the end, and leaves no child."""
    harness = Harness(folder, limits, environ, gates_url, **options)
    try:
        yield harness
    finally:
        async with asyncio.timeout(BOUND):
            await harness.executor.close()


def received(record: Path, method: str | None = None) -> list[dict[str, Any]]:
    """What a server that keeps a record was sent."""
    lines = record.read_text().splitlines() if record.exists() else []
    messages = [json.loads(line) for line in lines]
    return [message for message in messages if method is None or message.get("method") == method]


async def until(condition: Callable[[], Any]) -> Any:
    """Waits for something that only the system or a child brings about; fails after BOUND seconds."""
    async with asyncio.timeout(BOUND):
        while not (found := condition()):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.005)
    return found


def process_gone(pid: int) -> bool:
    """It has ended, whether or not it was reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
