"""The seam of the pool: a connection to an MCP server, whatever carries it, and who makes connections.

The pool knows these Protocols and nothing of what stands behind them: a child process, or the Tool Gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from protocol.jsjson import RawJson
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.limits import LIST_PAGES
from services.mcp_pool.session import PoolKey

LIST_BYTES = 16 * 1024 * 1024
"""A server whose tools take more text than this fails: a snapshot has to fit into one message."""


class Abort(Protocol):
    """The abort of one call; `kind` is a value of AbortKind, None while there is none."""

    @property
    def kind(self) -> int | None:
        """The abort, or None."""
        ...

    def listen(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Calls `listener` at the abort, at once when it has happened; returns how to stop listening."""
        ...


@dataclass(frozen=True, slots=True)
class ToolsPage:
    """One page of `tools/list`: checked tools, the next cursor, `plain` as in Parsed, size in bytes."""

    tools: list[dict[str, Any]]
    cursor: str | None
    plain: bool
    size: int


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One `tools/call`: the effect's id, the tool's own name, and a JSON object on one line."""

    effect_id: str
    name: str
    arguments: RawJson


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A checked `tools/call` result, `plain` as in Parsed, size in bytes."""

    result: dict[str, Any]
    plain: bool
    size: int


class Connection(Protocol):
    """An initialised connection. Requests may overlap and may come from any task of the loop.

    Every request raises an McpFailure: NotSent when the connection had ended before, ConnectionLost,
    RequestTimedOut, ServerError, AnswerInvalid.
    """

    @property
    def usable(self) -> bool:
        """New requests can be sent."""
        ...

    async def list_page(self, cursor: str | None) -> ToolsPage:
        """One page of tools."""
        ...

    async def call_tool(self, request: ToolRequest, abort: Abort) -> ToolAnswer:
        """Calls a tool. Raises RequestAborted for the kinds that end it (aborts.stopping)."""
        ...

    async def close(self) -> None:
        """Ends the connection, requests in flight included, and waits until nothing of it is left.

        When cancelled it gives up all gentleness and goes on with the cancellation.
        """
        ...


@runtime_checkable
class TellsToolsChanged(Protocol):
    """A connection that hears of `notifications/tools/list_changed`."""

    def on_tools_changed(self, listener: Callable[[], None]) -> None:
        """Calls `listener` at each one from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Connecting:
    """A connection that is to be opened by awaiting `opening`, which raises McpFailure."""

    connection: Connection
    opening: Callable[[], Awaitable[None]]
    transport: str = "pipe"
    """How the server is reached, in the words of metrics: `pipe`, or `tcp` through the gates."""


class Connector(Protocol):
    """Makes connections. The pool closes what it made, opened or not."""

    def connect(
        self, key: PoolKey, server: DeclaredServer, on_end: Callable[[Connection], None]
    ) -> Connecting:
        """Prepares one; nothing is started before `opening` is awaited. Raises McpFailure.

        `on_end` is called once, with the connection, when no new request can be sent any more.
        """
        ...


class OwnedConnector(Connector, Protocol):
    """A connector that keeps something for all of its connections."""

    @property
    def children(self) -> int:
        """Processes of its connections: from the start until nothing of their groups is left to be ended."""
        ...

    async def close(self) -> None:
        """Ends it, after the connections."""
        ...


@dataclass(frozen=True, slots=True)
class Listing:
    """All tools of a server in its own order, `plain` as in Parsed, size in bytes."""

    tools: list[dict[str, Any]]
    plain: bool
    size: int


class ListingTooLarge(Exception):
    """A server's tools take more text than a snapshot can hold."""


async def list_tools(connection: Connection) -> Listing:
    """Reads the pages of `tools/list`, at most 100; the rest is left out (mcp-pool 5.2).

    Raises what list_page raises, and ListingTooLarge.
    """
    tools: list[dict[str, Any]] = []
    plain, size, cursor = True, 0, None
    for _ in range(LIST_PAGES):
        page = await connection.list_page(cursor)
        tools += page.tools
        plain, size, cursor = plain and page.plain, size + page.size, page.cursor
        if size > LIST_BYTES:
            raise ListingTooLarge
        if not cursor:
            break
    return Listing(tools, plain, size)
