"""Which texts of a run's documents are secrets by their place, and are not written.

What passes through the conversation (prompts, arguments, outcomes) is the recording itself and is written
as it is; so is everything else, or a run could not be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from gateway.recording.format import LEFT_OUT
from protocol.jsjson import JsonValue

Place: TypeAlias = tuple[str | int, ...]
"""A path into a document."""

_KEPT_OF_A_SERVER: Final = frozenset({"name", "type", "command"})
"""A server's address and arguments carry keys as often as its headers do, and the engine needs none."""


def pointer(path: Place) -> str:
    """A JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def without_secrets(manifest: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Place]]:
    """The manifest without its servers' secrets, and where something was left out.

    The same object when nothing was. Looks into agents and workflows that are embedded, however deep.
    """
    found = _servers(manifest)
    left_out: list[Place] = []
    document: Any = manifest
    for path, server in found:
        clean, parts = _without_values(server)
        if parts:
            document = _replaced(document, path, clean)
            left_out.extend(path + part for part in parts)
    return document, left_out


def without_environment(sandbox: dict[str, Any]) -> tuple[dict[str, Any], list[Place]]:
    """`routing.sandbox` without the values of its environment, and where they stood."""
    environment = sandbox.get("environment")
    if not isinstance(environment, dict) or not environment:
        return sandbox, []
    clean = {**sandbox, "environment": dict.fromkeys(environment, LEFT_OUT)}
    return clean, [("environment", name) for name in environment]


def _servers(manifest: Any) -> list[tuple[Place, Mapping[str, Any]]]:
    """Every declared MCP server with its path, in all documents."""
    found: list[tuple[Place, Mapping[str, Any]]] = []
    left: list[tuple[Place, Any]] = [((), manifest)]
    while left:
        path, document = left.pop()
        if not isinstance(document, Mapping):
            continue
        for key, agent in _members(document.get("agents")):
            left.append(((*path, "agents", key), agent))
        for index, capability in _items(document.get("capabilities")):
            at = (*path, "capabilities", index)
            for name, server in _members(capability.get("mcpServers")):
                if isinstance(server, Mapping):
                    found.append(((*at, "mcpServers", name), server))
            for number, tool in _items(capability.get("tools")):
                left.append(((*at, "tools", number, "agent"), tool.get("agent")))
    return found


def _members(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _items(value: Any) -> list[tuple[int, Mapping[str, Any]]]:
    if not isinstance(value, list):
        return []
    return [(index, item) for index, item in enumerate(value) if isinstance(item, Mapping)]


def _without_values(server: Mapping[str, Any]) -> tuple[JsonValue, list[Place]]:
    """A server's declaration with every text below other members left out. Its shape stays valid."""
    left_out: list[Place] = []
    clean: dict[str, Any] = {}
    for name, value in server.items():
        if name in _KEPT_OF_A_SERVER:
            clean[name] = value
        elif isinstance(value, dict):
            clean[name] = dict.fromkeys(value, LEFT_OUT)
            left_out.extend((name, key) for key in value)
        elif isinstance(value, list):
            clean[name] = [LEFT_OUT] * len(value)
            left_out.extend((name, index) for index in range(len(value)))
        else:
            clean[name] = LEFT_OUT
            left_out.append((name,))
    return clean, left_out


def _replaced(document: Any, path: Place, value: Any) -> Any:
    """A copy of the document with another value at the path; everything else is shared."""
    root = document.copy()
    at = root
    for part in path[:-1]:
        at[part] = at[part].copy()
        at = at[part]
    at[path[-1]] = value
    return root
