"""Finds MCP tools in a snapshot and sandbox tools in a manifest (mcp-pool 8.1, sandbox-manager 11.1). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.executors.effects import member, objects
from protocol.jsjson import JsonValue
from protocol.mcp_servers import agents_of

SANDBOX_TOOLS: Final = frozenset({"bash", "read", "write", "edit", "grep", "glob"})


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
