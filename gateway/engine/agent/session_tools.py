"""Tools that a session brings along and no manifest declares (agent-engine 3, point 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.agent import texts
from gateway.engine.contract import EngineRefused
from gateway.engine.shapes import ShapeError, at_least, mapping, name, text

_BUILD_FAILED: Final = "agent.build-failed"

_SESSION_TOOL: Final = at_least(
    {"capabilityId": name, "name": name, "inputSchema": mapping},
    {"agentId": name, "description": text, "outputSchema": mapping},
)


@dataclass(frozen=True, slots=True)
class SessionTool:
    """A session tool of one agent; `declaration` is like a manifest's tool."""

    capability_id: str
    declaration: Mapping[str, Any]


def owned_session_tools(
    manifest: Mapping[str, Any], session_tools: Sequence[Any], root_agent_id: str
) -> dict[str, list[SessionTool]]:
    """The session tools of the manifest's agent, by capability, in order.

    Raises EngineRefused `agent.build-failed`: a tool without shape, two of one name, a capability that is
    not there, or a name that the capability declares itself.
    """
    agent_id = manifest["id"]
    declared = {
        capability["id"]: {tool["name"] for tool in capability.get("tools", ())}
        for capability in manifest["capabilities"]
    }
    names: set[str] = set()
    owned: dict[str, list[SessionTool]] = {}
    for index, tool in enumerate(session_tools):
        try:
            _SESSION_TOOL(tool, f"sessionTools[{index}]")
        except ShapeError as error:
            raise EngineRefused(_BUILD_FAILED, f"Invalid session tool: {error}") from None
        if tool.get("agentId", root_agent_id) != agent_id:
            continue
        tool_name, capability_id = tool["name"], tool["capabilityId"]
        if tool_name in names:
            raise EngineRefused(_BUILD_FAILED, texts.session_tool_duplicate(tool_name))
        names.add(tool_name)
        if capability_id not in declared:
            message = texts.session_tool_unknown_capability(tool_name, capability_id)
            raise EngineRefused(_BUILD_FAILED, message)
        if tool_name in declared[capability_id]:
            raise EngineRefused(_BUILD_FAILED, texts.session_tool_collides(tool_name))
        owned.setdefault(capability_id, []).append(SessionTool(capability_id, tool))
    return owned
