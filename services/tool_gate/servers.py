"""What a session may ask of its servers: connect, list, close and call (mcp-pool 9.1)."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from protocol.mcp_servers import ServerDeclared
from services.common.logs import get_logger, trace_context
from services.common.telemetry import Telemetry
from services.tool_gate import answers
from services.tool_gate.bodies import CallRequest, ServerRequest
from services.tool_gate.cleaning import as_json
from services.tool_gate.core import Servers
from services.tool_gate.credentials import Access, GateConfig
from services.tool_gate.failures import AnswerInvalid, SessionGone, UpstreamFailure
from services.tool_gate.pool import ServerKey, Upstream, UpstreamPool

OFF_LOOP_CHARACTERS: Final = 256 * 1024
"""Results with longer texts are written in a thread."""
_REMOTE: Final = ("streamable-http", "sse")

Connector = Callable[[Mapping[str, Any], Access, Callable[[Any], None]], Upstream]
"""Prepares a connection from a declaration. Raises UpstreamFailure."""


class ToolServers:
    """Requests to the servers of sessions.

    `load_connector` gives what makes connections; it is called at the first one, in a thread, because the
    SDK takes a second and 30 MB to load. With `traceparent` servers are told the trace of a call in its `_meta`.
    """

    def __init__(
        self,
        pool: UpstreamPool,
        config: GateConfig,
        load_connector: Callable[[], Connector],
        *,
        telemetry: Telemetry | None = None,
        traceparent: bool = False,
    ) -> None:
        self._pool = pool
        self._config = config
        self._load_connector = load_connector
        self._telemetry = telemetry or Telemetry()
        self._traceparent = traceparent
        self._connector: Connector | None = None
        self._loading = asyncio.Lock()

    async def connect(self, request: ServerRequest, servers: Servers) -> str:
        """Opens a server, or finds it open."""

        async def nothing(upstream: Upstream) -> str:
            del upstream
            return answers.NOTHING

        return await self._ask(request.server, servers, nothing)

    async def list_page(self, request: ServerRequest, servers: Servers) -> str:
        """One page of tools."""
        params = None if request.cursor is None else {"cursor": request.cursor}

        async def ask(upstream: Upstream) -> str:
            result = await upstream.request("tools/list", params)
            if not isinstance(result.get("tools"), list):
                raise AnswerInvalid("tools/list: tools is not an array.")
            page = {name: value for name, value in result.items() if name in ("tools", "nextCursor")}
            return await _text(page, upstream)

        return await self._ask(request.server, servers, ask)

    async def call(self, request: CallRequest, servers: Servers) -> str:
        """A tool call."""
        params = {"name": as_json(request.name), "arguments": as_json(request.arguments)}
        attributes = {
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": request.name,
            "nylorun.session.id": request.server.session_id,
            "nylorun.effect.id": request.effect_id,
        }

        async def ask(upstream: Upstream) -> str:
            name = f"tools/call {request.name}"
            with self._telemetry.span(name, attributes, trace_context.get()) as trace:
                meta = {"_meta": {"traceparent": trace}} if self._traceparent and trace is not None else {}
                result = await upstream.request("tools/call", {**params, **meta})
            return await _text(result, upstream)

        return await self._ask(request.server, servers, ask, call=True)

    def close(self, request: ServerRequest) -> None:
        """Closes a server's connection when its last request ends."""
        self._pool.close(request.server)

    async def _ask(
        self,
        key: ServerKey,
        servers: Servers,
        ask: Callable[[Upstream], Awaitable[str]],
        *,
        call: bool = False,
    ) -> str:
        declared = servers.get(key[1:])
        why_not = _why_not(key, declared)
        if why_not is not None or declared is None:
            return answers.refused(why_not or "")
        try:
            try:
                return await self._once(key, declared, ask)
            except SessionGone:
                # The server did not look at the request, so it may be made again.
                return await self._once(key, declared, ask)
        except UpstreamFailure as failure:
            get_logger().info(
                "mcp_upstream_failed",
                sessionId=key.session_id,
                server=key.server_name,
                failure=type(failure).__name__,
                code=failure.code,
            )
            return answers.failed(failure, call=call)

    async def _once(
        self, key: ServerKey, declared: ServerDeclared, ask: Callable[[Upstream], Awaitable[str]]
    ) -> str:
        async def connect(on_end: Callable[[Any], None]) -> Upstream:
            url = declared.declaration.get("url")
            access = await asyncio.to_thread(self._config.access, key.server_name, str(url))
            return (await self._loaded())(declared.declaration, access, on_end)

        async with self._pool.lease(key, connect) as upstream:
            try:
                return await ask(upstream)
            except SessionGone:
                self._pool.retire(upstream)
                raise

    async def _loaded(self) -> Connector:
        if self._connector is None:
            async with self._loading:
                if self._connector is None:
                    self._connector = await asyncio.to_thread(self._load_connector)
        return self._connector


def load_opener(request_s: float) -> Connector:
    """What makes connections with the SDK's transports; loads the SDK."""
    opener = importlib.import_module("services.tool_gate.upstream.opener")
    made: Connector = opener.Opener(request_s=request_s).connection
    return made


def _why_not(key: ServerKey, declared: ServerDeclared | None) -> str | None:
    """Why a server is not one for the gate; None when it is."""
    if declared is None:
        return f"The MCP server {key.server_name} is not declared in the session's manifest."
    kind = declared.declaration.get("type")
    if kind == "stdio":
        return f"The MCP server {key.server_name} is of type stdio, which is not reached through a gate."
    if kind not in _REMOTE:
        return f"The MCP server {key.server_name} has a type that the Tool Gate does not know."
    return None


async def _text(result: Mapping[str, Any], upstream: Upstream) -> str:
    if _length(result) > OFF_LOOP_CHARACTERS:
        return await asyncio.to_thread(answers.result, result, upstream.secrets)
    return answers.result(result, upstream.secrets)


def _length(value: object) -> int:
    """How long the texts of a value are together, up to the limit that is asked for."""
    total, left = 0, [value]
    while left and total <= OFF_LOOP_CHARACTERS:
        item = left.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            total += 16 * len(item)
            left.extend(item.values())
        elif isinstance(item, list):
            total += 16 * len(item)
            left.extend(item)
    return total
