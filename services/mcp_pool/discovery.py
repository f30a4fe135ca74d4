"""Discovery of a session's servers and tools, and reconnecting to them later (mcp-pool 5 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol.jsjson import JsonValue, Parsed, dumps
from services.common.logs import get_logger
from services.mcp_pool.connection import Listing, ListingTooLarge, list_tools
from services.mcp_pool.declarations import DeclaredServer, ServerName, declared_tool_names, servers_of
from services.mcp_pool.diagnostics import Diagnostic, connected, not_connected
from services.mcp_pool.entries import Entry
from services.mcp_pool.failures import McpFailure
from services.mcp_pool.limits import NAMING_OFF_LOOP_TOOLS, Limits
from services.mcp_pool.naming import record_tools
from services.mcp_pool.pool import ConnectionPool
from services.mcp_pool.preparation import Preparation
from services.mcp_pool.session import Session
from services.mcp_pool.tools_watch import ToolsWatch

SNAPSHOT_VERSION: Final = 1

SNAPSHOT_BYTES: Final = 48 * 1024 * 1024
"""Servers whose tools would make the snapshot larger fail: it has to fit into one message with the rest."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """JSON texts: the snapshot document, and an array of one diagnostic per server in manifest order."""

    snapshot: str
    diagnostics: str


class _Opening:
    """A server that is being opened; `turn_came` once something was started for it."""

    def __init__(self, server: DeclaredServer) -> None:
        self.server = server
        self.turn_came = False
        self.entry: Entry | None = None
        """What is in the pool for it afterwards."""
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        self.turn_came = True

    def give_up(self) -> None:
        """Nobody waits any more: what was started goes on, what was not is dropped."""
        if self.task is not None and not self.turn_came:
            self.task.cancel()


class Discovery:
    """Opens and lists servers through the pool.

    `check_tools`: a server that is opened for an old snapshot is listed once more, for people.
    """

    def __init__(self, pool: ConnectionPool, limits: Limits, watch: ToolsWatch, check_tools: bool) -> None:
        self._pool = pool
        self._limits = limits
        self._watch = watch
        self._check_tools = check_tools

    async def discover(
        self, session: Session, manifest: Parsed, manifest_hash: str, plugin_roots: Mapping[str, str]
    ) -> Discovered:
        """Opens all servers of a root manifest and lists their tools; ends within the limit of one server.

        Servers are opened at the same time, and named, recorded and reported in manifest order. When
        cancelled, the wait ends at once; servers that were being opened still end up in the pool.
        """
        openings = [_Opening(server) for server in servers_of(manifest.value, plugin_roots)]
        with self._pool.preparation() as preparation:
            for opening in openings:
                opening.task = self._pool.own(self._open_and_list(session, opening, preparation))
            await _all_done(openings)
        taken = declared_tool_names(manifest.value)
        records: list[JsonValue] = []
        diagnostics: list[JsonValue] = []
        plain, size = manifest.plain, 0
        for opening in openings:
            name = opening.server.name
            listing = _result(opening)
            if isinstance(listing, Listing) and size + listing.size > SNAPSHOT_BYTES:
                listing = McpFailure(f"The session's MCP tools take more than {SNAPSHOT_BYTES} bytes.")
            if isinstance(listing, McpFailure):
                diagnostics.append(self._failed(session, name, listing))
                continue
            names = taken.setdefault(name.agent_id, set())
            if len(listing.tools) > NAMING_OFF_LOOP_TOOLS:
                recorded = await asyncio.to_thread(record_tools, name, listing.tools, names)
            else:
                recorded = record_tools(name, listing.tools, names)
            plain, size = plain and listing.plain, size + listing.size
            records += recorded.records
            diagnostics.append(connected(name, recorded.omitted))
            if opening.entry is not None:
                self._watch.pin_listing(opening.entry, listing.tools)
        snapshot: JsonValue = {
            "snapshotSchemaVersion": SNAPSHOT_VERSION,
            "manifestHash": manifest_hash,
            "mcpTools": records,
        }
        get_logger().info(
            "mcp_discovered", sessionId=session.session_id, servers=len(openings), tools=len(records)
        )
        return Discovered(dumps(snapshot, plain=plain), dumps(diagnostics))

    async def reconnect(
        self,
        session: Session,
        snapshot: JsonValue,
        declared: Sequence[DeclaredServer],
        snapshot_id: object = None,
    ) -> list[Diagnostic]:
        """Opens the servers that a snapshot's tools name and that are not open; lists nothing.

        Returns a diagnostic for each that can't be opened, in the order of the tools. `snapshot_id` tells
        snapshots apart.
        """
        servers = {server.name: server for server in declared}
        openings: dict[ServerName, _Opening | None] = {}
        with self._pool.preparation() as preparation:
            records = _records_by_server(snapshot)
            for name in records:
                entry = preparation.touch(session.key(name))
                if entry is not None:
                    self._watch.pin_snapshot(entry, snapshot_id, records[name], look=False)
                    continue
                server = servers.get(name)
                openings[name] = None if server is None else _Opening(server)
            begun = [opening for opening in openings.values() if opening is not None]
            for opening in begun:
                opening.task = self._pool.own(self._open(session, opening, preparation))
            await _all_done(begun)
        diagnostics: list[Diagnostic] = []
        for name, opened in openings.items():
            failure = _NOT_DECLARED if opened is None else _result(opened)
            if isinstance(failure, McpFailure):
                diagnostics.append(self._failed(session, name, failure))
            elif opened is not None and opened.entry is not None:
                self._watch.pin_snapshot(opened.entry, snapshot_id, records[name], look=self._check_tools)
        return diagnostics

    async def _open_and_list(self, session: Session, opening: _Opening, preparation: Preparation) -> Listing:
        limit, key = self._limits.server, session.key(opening.server.name)
        try:
            async with asyncio.timeout(limit):
                connection = await self._pool.open(key, opening.server, opening.begin)
                try:
                    listing = await list_tools(connection)
                except BaseException:
                    self._pool.discard(connection)
                    raise
        except TimeoutError:
            raise McpFailure(
                f"The MCP server was not open and its tools not listed within {limit:g} s."
            ) from None
        except ListingTooLarge:
            raise McpFailure("The MCP server's list of tools is too large.") from None
        opening.entry = preparation.put(key, connection)
        return listing

    async def _open(self, session: Session, opening: _Opening, preparation: Preparation) -> None:
        key = session.key(opening.server.name)
        try:
            async with asyncio.timeout(self._limits.server):
                connection = await self._pool.open(key, opening.server, opening.begin)
        except TimeoutError:
            raise McpFailure(f"The MCP server was not open within {self._limits.server:g} s.") from None
        opening.entry = preparation.put(key, connection)

    def _failed(self, session: Session, name: ServerName, failure: McpFailure) -> Diagnostic:
        get_logger().warning(
            "mcp_server_failed",
            sessionId=session.session_id,
            server=name.server_name,
            failure=type(failure).__name__,
        )
        return not_connected(name, failure)


_NOT_DECLARED: Final = McpFailure("The manifest does not declare this MCP server any more.")
_SHUT_DOWN: Final = McpFailure("The MCP pool is shutting down.")


async def _all_done(openings: Sequence[_Opening]) -> None:
    tasks = [opening.task for opening in openings if opening.task is not None]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for opening in openings:
            opening.give_up()
        raise


def _result(opening: _Opening) -> Any:
    """What an opening came to, or its McpFailure."""
    task = opening.task
    assert task is not None
    if task.cancelled():
        return _SHUT_DOWN
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, McpFailure):
        return error
    raise error


def _records_by_server(snapshot: JsonValue) -> dict[ServerName, list[dict[str, JsonValue]]]:
    """A snapshot's records, by their servers in the order in which those are first seen."""
    tools = snapshot.get("mcpTools") if isinstance(snapshot, dict) else None
    records: dict[ServerName, list[dict[str, JsonValue]]] = {}
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        agent_id, capability_id, server_name = (
            tool.get(member) for member in ("agentId", "capabilityId", "serverName")
        )
        if isinstance(capability_id, str) and isinstance(server_name, str):
            name = ServerName(agent_id if isinstance(agent_id, str) else None, capability_id, server_name)
            records.setdefault(name, []).append(tool)
    return records
