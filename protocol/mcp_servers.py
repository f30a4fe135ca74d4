"""Which MCP servers a root manifest declares (mcp-pool 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.jsjson import JsonValue


@dataclass(frozen=True, slots=True)
class ServerDeclared:
    """A server of a manifest; `agent_id` None means the root agent."""

    agent_id: str | None
    capability_id: str
    server_name: str
    declaration: Mapping[str, JsonValue]

    @property
    def is_stdio(self) -> bool:
        """It runs as a child of mcp-pool; every other server is reached through the Tool Gate."""
        return self.declaration.get("type") == "stdio"

    @property
    def plugin_key(self) -> str:
        """The key of its plugin root."""
        return self.capability_id if self.agent_id is None else f"{self.agent_id}/{self.capability_id}"


def servers_of(manifest: Mapping[str, Any]) -> list[ServerDeclared]:
    """The root agent's servers, then those of each agent used as a tool, one level deep, in order.

    Agents that are workflows have none here. Members of the wrong shape declare nothing.
    """
    return [
        ServerDeclared(agent_id, capability_id, name, declaration)
        for agent_id, agent in agents_of(manifest)
        for capability in _objects(agent.get("capabilities"))
        if isinstance(capability_id := capability.get("id"), str)
        for name, declaration in _servers(capability)
    ]


def agents_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, JsonValue]]]:
    """The root agent, then each agent used as a tool that is no workflow."""
    yield None, manifest
    for capability in _objects(manifest.get("capabilities")):
        for tool in _objects(capability.get("tools")):
            child = tool.get("agent")
            if isinstance(child, Mapping) and "kind" not in child:
                agent_id = child.get("id")
                if isinstance(agent_id, str):
                    yield agent_id, child


def _servers(capability: Mapping[str, JsonValue]) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    servers = capability.get("mcpServers")
    if isinstance(servers, Mapping):
        for name, declaration in servers.items():
            yield name, declaration if isinstance(declaration, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, JsonValue]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
