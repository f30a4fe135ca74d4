"""A remote MCP server as the pool sees it: a connection that the Tool Gate holds (mcp-pool 7.2 and 9.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from protocol.jsjson import RawJson
from services.mcp_pool import aborts
from services.mcp_pool.connection import Abort, Connecting, Connection, ToolAnswer, ToolRequest, ToolsPage
from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.failures import NotSent, RequestAborted
from services.mcp_pool.gate.client import GateResult
from services.mcp_pool.results import check_call_result, check_tools_page
from services.mcp_pool.session import PoolKey, Session


class Gate(Protocol):
    """What is asked of a gate; every method but close_server raises an McpFailure."""

    async def connect(self, session: Session, name: ServerName) -> None:
        """Has the gate open the server."""
        ...

    async def list_page(self, session: Session, name: ServerName, cursor: str | None) -> GateResult:
        """One page of `tools/list`."""
        ...

    async def call(
        self, session: Session, name: ServerName, effect_id: str, tool: str, arguments: RawJson
    ) -> GateResult:
        """One tool call."""
        ...

    async def close_server(self, session: Session, name: ServerName) -> None:
        """Nobody uses the server any more. Never fails."""
        ...


class GateConnector:
    """Makes connections through one gate. See connection.Connector."""

    def __init__(self, client: Gate) -> None:
        self._client = client
        self._open: Counter[PoolKey] = Counter()

    def connect(
        self, key: PoolKey, server: DeclaredServer, on_end: Callable[[Connection], None]
    ) -> Connecting:
        """Nothing is sent before `opening` is awaited. `on_end` is never called: the gate opens again by
        itself what it dropped."""
        connection = _GateConnection(self._client, key, self._open)
        return Connecting(connection, connection.open, "tcp")


class _GateConnection:
    """Without a state of its own but that the gate was asked for it.

    `shared` counts who has asked for the same server: the gate has one connection for all of them, and
    the last one closes it.
    """

    def __init__(self, client: Gate, key: PoolKey, shared: Counter[PoolKey]) -> None:
        self._client = client
        self._key = key
        self._session = Session(key.tenant_id, key.session_id)
        self._shared = shared
        self._asked = False
        self._closed = False

    @property
    def usable(self) -> bool:
        """New requests can be sent."""
        return self._asked and not self._closed

    async def open(self) -> None:
        """Has the gate open the server. Raises McpFailure."""
        self._asked = True
        self._shared[self._key] += 1
        await self._client.connect(self._session, self._key.name)

    async def list_page(self, cursor: str | None) -> ToolsPage:
        """One page of tools."""
        self._check()
        found = await self._client.list_page(self._session, self._key.name, cursor)
        tools, next_cursor = check_tools_page(found.value)
        return ToolsPage(tools, next_cursor, found.plain, found.size)

    async def call_tool(self, request: ToolRequest, abort: Abort) -> ToolAnswer:
        """Calls a tool. An abort that ends it closes the HTTP request; the gate goes on with the call."""
        self._check()
        found = await self._until_aborted(request, abort)
        return ToolAnswer(check_call_result(found.value), found.plain, found.size)

    async def close(self) -> None:
        """Tells the gate when nobody else uses the server."""
        if self._closed or not self._asked:
            return
        self._closed = True
        self._shared[self._key] -= 1
        if not self._shared[self._key]:
            del self._shared[self._key]
            await self._client.close_server(self._session, self._key.name)

    def _check(self) -> None:
        if not self.usable:
            raise NotSent("The connection to the MCP server was closed.")

    async def _until_aborted(self, request: ToolRequest, abort: Abort) -> GateResult:
        loop = asyncio.get_running_loop()
        stopped: list[int] = []
        try:
            async with asyncio.timeout(None) as bound:

                def aborted(kind: int) -> None:
                    if kind in aborts.REMOTE and not stopped:
                        stopped.append(kind)
                        bound.reschedule(loop.time())

                forget = abort.listen(aborted)
                try:
                    if stopped:
                        raise RequestAborted(stopped[0])
                    return await self._client.call(
                        self._session, self._key.name, request.effect_id, request.name, request.arguments
                    )
                finally:
                    forget()
        except TimeoutError:
            raise RequestAborted(stopped[0]) from None
