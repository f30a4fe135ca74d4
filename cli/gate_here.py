"""The Tool Gate's way to remote MCP servers without its process: no core, no session, no run token.

For looking at servers only: nothing is called, so nothing has to be remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from protocol.jsjson import RawJson
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.failures import McpFailure
from services.mcp_pool.gate.client import GateResult
from services.mcp_pool.gate.wire import read_result
from services.mcp_pool.session import Session
from services.tool_gate.bodies import ServerRequest
from services.tool_gate.core import declared
from services.tool_gate.credentials import GateConfig
from services.tool_gate.pool import ServerKey, UpstreamPool
from services.tool_gate.servers import ToolServers, load_opener


class GateHere:
    """See services.mcp_pool.gate.connection.Gate. Credentials are those of the gate's file, `config`."""

    def __init__(self, manifest: Mapping[str, Any], config: GateConfig, *, request_s: float) -> None:
        self._declared = declared(manifest)
        self._pool = UpstreamPool()
        self._servers = ToolServers(self._pool, config, functools.partial(load_opener, request_s))

    async def connect(self, session: Session, name: ServerName) -> None:
        """Opens a server."""
        _read(await self._servers.connect(_request(session, name), self._declared))

    async def list_page(self, session: Session, name: ServerName, cursor: str | None) -> GateResult:
        """One page of tools."""
        return _read(await self._servers.list_page(_request(session, name, cursor), self._declared))

    async def call(
        self, session: Session, name: ServerName, effect_id: str, tool: str, arguments: RawJson
    ) -> GateResult:
        """Raises McpFailure."""
        raise McpFailure("No tool is called without a session.")

    async def close_server(self, session: Session, name: ServerName) -> None:
        """Closes a server's connection."""
        self._servers.close(_request(session, name))

    async def close(self) -> None:
        """Closes all connections."""
        await self._pool.shut()


def _request(session: Session, name: ServerName, cursor: str | None = None) -> ServerRequest:
    key = ServerKey(session.session_id, name.agent_id, name.capability_id, name.server_name)
    return ServerRequest(key, cursor)


def _read(text: str) -> GateResult:
    body = text.encode()
    result = read_result(200, body)
    return GateResult(result.value, result.plain, len(body))
