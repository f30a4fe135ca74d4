"""Model-facing names and the snapshot's records of one server, profile l17 (mcp-pool 5.2, 5.4 and 6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.jsjson import JsonValue
from protocol.json_schema.usable import usable_schema
from services.mcp_pool.declarations import ServerName


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a server brings: records in list order, and the model-facing names that were left out."""

    records: list[dict[str, JsonValue]]
    omitted: list[str]


def model_name(server_name: str, tool_name: str) -> str:
    """The name under which a model sees a tool: any characters, any length."""
    return f"{server_name}__{tool_name}"


def record_tools(server: ServerName, tools: Iterable[Mapping[str, Any]], taken: set[str]) -> Recorded:
    """Names a server's listed tools and makes their records; adds the names to `taken`.

    `taken` holds the names of the server's agent: its own tools and those of servers before this one. A
    tool without a name is skipped; one whose name is taken or whose input schema can't be used is left out.
    """
    recorded = Recorded([], [])
    for tool in tools:
        if not tool["name"]:
            continue
        name = model_name(server.server_name, tool["name"])
        if name in taken or not usable_schema(tool["inputSchema"]):
            recorded.omitted.append(name)
            continue
        taken.add(name)
        recorded.records.append(_record(server, tool, name))
    return recorded


def _record(server: ServerName, tool: Mapping[str, Any], name: str) -> dict[str, JsonValue]:
    record = {**server.members(), "serverToolName": tool["name"], "name": name}
    if tool.get("description"):
        record["description"] = tool["description"]
    record["inputSchema"] = tool["inputSchema"]
    if "outputSchema" in tool and usable_schema(tool["outputSchema"]):
        record["outputSchema"] = tool["outputSchema"]
    return record
