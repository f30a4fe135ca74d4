"""Which MCP servers and sandbox tools a root manifest declares (mcp-pool 2.1, sandbox-manager 11.1). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.executors.effects import member, objects
from protocol.jsjson import JsonValue

SANDBOX_TOOLS: Final = frozenset({"bash", "read", "write", "edit", "grep", "glob"})


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
        ServerDeclared(agent_id, str(capability.get("id")), name, declaration)
        for agent_id, agent in agents_of(manifest)
        for capability in objects(agent.get("capabilities"))
        for name, declaration in _servers(capability)
    ]


def index_records(snapshot: JsonValue) -> dict[tuple[str | None, str, str], Mapping[str, JsonValue]]:
    """The snapshot's records by agent, capability and tool name; the first of equal ones counts."""
    records: dict[tuple[str | None, str, str], Mapping[str, JsonValue]] = {}
    for record in objects(member(snapshot, "mcpTools")):
        agent_id, capability_id, name = (record.get(key) for key in ("agentId", "capabilityId", "name"))
        if isinstance(capability_id, str) and isinstance(name, str) and isinstance(agent_id, str | None):
            records.setdefault((agent_id, capability_id, name), record)
    return records


def sandbox_spec(
    manifest: Mapping[str, Any], agent_id: str | None, capability_id: object, tool_name: object
) -> Mapping[str, JsonValue] | None:
    """The sandbox spec behind a tool of the effect's agent, or None when it is no sandbox tool."""
    if tool_name not in SANDBOX_TOOLS:
        return None
    for agent in (agent for found, agent in agents_of(manifest) if found == agent_id):
        for capability in objects(agent.get("capabilities")):
            spec = capability.get("sandbox")
            if capability.get("id") != capability_id or not isinstance(spec, Mapping):
                continue
            if any(tool.get("name") == tool_name for tool in objects(capability.get("tools"))):
                return spec
    return None


def agents_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, JsonValue]]]:
    """The root agent, then each agent used as a tool that is no workflow."""
    yield None, manifest
    for capability in objects(manifest.get("capabilities")):
        for tool in objects(capability.get("tools")):
            child = tool.get("agent")
            if isinstance(child, Mapping) and "kind" not in child:
                yield str(child.get("id")), child


def _servers(capability: Mapping[str, JsonValue]) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    servers = capability.get("mcpServers")
    if isinstance(servers, Mapping):
        for name, declaration in servers.items():
            yield name, declaration if isinstance(declaration, Mapping) else {}
