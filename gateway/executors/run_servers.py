"""What one run's snapshot and manifest say about MCP tools, looked up once and kept with the run."""

from __future__ import annotations

from collections.abc import Mapping

from whippletree.v1 import common_pb2, mcp_pool_pb2

from gateway.executors.contract import RunContext
from gateway.executors.servers_of import index_records
from protocol.jsjson import JsonValue, dumps
from protocol.mcp_servers import ServerDeclared, servers_of

_PIN = "mcp servers"
_Name = tuple[str | None, str, str]


class RunServers:
    """Finds records by tool and servers by record. A manifest of 10,000 tools is walked once a run."""

    def __init__(self, run: RunContext) -> None:
        self.snapshot = run.mcp_snapshot
        self._roots = run.plugin_roots
        self._records = index_records(run.mcp_snapshot)
        self._servers: dict[_Name, ServerDeclared] = {}
        for server in servers_of(run.root_manifest):
            self._servers.setdefault((server.agent_id, server.capability_id, server.server_name), server)
        self._declarations: dict[_Name, mcp_pool_pb2.ServerDeclaration] = {}

    def record(
        self, agent_id: str | None, capability_id: object, tool: object
    ) -> Mapping[str, JsonValue] | None:
        """The first record of a tool (mcp-pool 8.1)."""
        if not isinstance(capability_id, str) or not isinstance(tool, str):
            return None
        return self._records.get((agent_id, capability_id, tool))

    def server(self, record: Mapping[str, JsonValue]) -> ServerDeclared | None:
        """The declared server of a record."""
        return self._servers.get(_name_of(record))

    def declaration(self, server: ServerDeclared) -> mcp_pool_pb2.ServerDeclaration:
        """The server as mcp-pool is told about it. Raises UnicodeEncodeError for a lone surrogate."""
        name = (server.agent_id, server.capability_id, server.server_name)
        made = self._declarations.get(name)
        if made is None:
            made = self._declarations[name] = mcp_pool_pb2.ServerDeclaration(
                agent_id=server.agent_id,
                capability_id=server.capability_id,
                server_name=server.server_name,
                declaration=common_pb2.Json(text=dumps(server.declaration)),
                plugin_root=self._roots.get(server.plugin_key),
            )
        return made

    def named_in(self, snapshot: JsonValue) -> list[ServerDeclared]:
        """The declared servers that a snapshot's tools name, in manifest order."""
        wanted = {_name_of(record) for record in index_records(snapshot).values()}
        return [server for name, server in self._servers.items() if name in wanted]


def servers_for(run: RunContext) -> RunServers:
    """The run's servers, made anew when its snapshot is another one."""
    kept = run.pins.get(_PIN)
    if not isinstance(kept, RunServers) or kept.snapshot is not run.mcp_snapshot:
        kept = run.pins[_PIN] = RunServers(run)
    return kept


def _name_of(record: Mapping[str, JsonValue]) -> _Name:
    agent_id = record.get("agentId")
    return (
        agent_id if isinstance(agent_id, str) else None,
        str(record.get("capabilityId")),
        str(record.get("serverName")),
    )
