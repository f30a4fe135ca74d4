"""Which MCP servers a manifest has, and which names its own tools take (mcp-pool 2 and 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.jsjson import JsonValue
from protocol.mcp_servers import agents_of
from protocol.mcp_servers import servers_of as declared


@dataclass(frozen=True, slots=True)
class ServerName:
    """Names one server of a session; `agent_id` None means the root agent."""

    agent_id: str | None
    capability_id: str
    server_name: str

    def plugin_key(self) -> str:
        """The key of its plugin root and plugin data (mcp-pool 3)."""
        return self.capability_id if self.agent_id is None else f"{self.agent_id}/{self.capability_id}"

    def members(self) -> dict[str, JsonValue]:
        """How records and diagnostics begin."""
        named: dict[str, JsonValue] = {} if self.agent_id is None else {"agentId": self.agent_id}
        return {**named, "capabilityId": self.capability_id, "serverName": self.server_name}


@dataclass(frozen=True, slots=True)
class DeclaredServer:
    """A server, its declaration document, and the plugin that it came from."""

    name: ServerName
    declaration: Mapping[str, Any]
    plugin_root: str | None = None

    @property
    def is_stdio(self) -> bool:
        """It is started as a child process; everything else is reached through the Tool Gate."""
        return self.declaration.get("type") == "stdio"


def servers_of(manifest: JsonValue, plugin_roots: Mapping[str, str]) -> list[DeclaredServer]:
    """The servers of a root manifest and of the agents it uses as tools, in order (mcp-pool 2.1)."""
    return [
        DeclaredServer(
            ServerName(server.agent_id, server.capability_id, server.server_name),
            server.declaration,
            plugin_roots.get(server.plugin_key),
        )
        for server in (declared(manifest) if isinstance(manifest, dict) else ())
    ]


def declared_tool_names(manifest: JsonValue) -> dict[str | None, set[str]]:
    """For each agent that may have servers, the names of the tools that its manifest declares."""
    names: dict[str | None, set[str]] = {}
    for agent_id, agent in agents_of(manifest) if isinstance(manifest, dict) else ():
        taken = names.setdefault(agent_id, set())
        for capability in _objects(agent.get("capabilities")):
            for tool in _objects(capability.get("tools")):
                if isinstance(tool.get("name"), str):
                    taken.add(tool["name"])
    return names


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
