"""Whether a manifest is a variant of another one: what a loop may change about its agent (flow-engine 7.8)."""

from __future__ import annotations

from typing import Any

from gateway.engine.contract import ABSENT, Absent
from gateway.engine.flow.failures import Unreadable
from gateway.engine.flow.values import member
from protocol.canonical import canonical_request
from protocol.jsjson import JsonValue

_Json = JsonValue | Absent


def is_variant(candidate: _Json, pinned: _Json) -> bool:
    """Whether the candidate differs from the pinned manifest only where a loop may change it.

    Texts may differ, and tools, skills and whole capabilities may be missing, but for capabilities with hooks,
    MCP servers or a sandbox. Raises Unreadable where either is no manifest at all.
    """
    for name in ("id", "manifestSchemaVersion"):
        if not _identical(_of(candidate, name), _of(pinned, name)):
            return False
    if not _equal(_or_empty(_of(candidate, "runtime")), _or_empty(_of(pinned, "runtime"))):
        return False
    wanted, given = _capabilities(pinned), _capabilities(candidate)
    for capability_id, capability in wanted.items():
        for name in ("hooks", "mcpServers", "sandbox"):
            required = capability.get(name, ABSENT)
            if required is ABSENT or (name == "hooks" and not required):
                continue
            kept = given.get(capability_id)
            if kept is None or not _equal(kept.get(name, ABSENT), required):
                return False
    return all(_fits(capability, wanted.get(key)) for key, capability in given.items())


def _fits(capability: dict[str, Any], pinned: dict[str, Any] | None) -> bool:
    if pinned is None or not _identical(capability.get("type", ABSENT), pinned.get("type", ABSENT)):
        return False
    tools = {_of(tool, "name"): tool for tool in _items(pinned.get("tools"))}
    for tool in _items(capability.get("tools")):
        if not _equal(tools.get(_of(tool, "name"), ABSENT), tool):
            return False
    skills = _members(pinned.get("skills"))
    for key, skill in _members(capability.get("skills")).items():
        if not _equal(skills.get(key, ABSENT), skill):
            return False
    if pinned.get("hooks"):
        if not _equal(capability.get("hooks", ABSENT), pinned["hooks"]):
            return False
    elif capability.get("hooks"):
        return False
    return all(
        _equal(capability.get(name, ABSENT), pinned.get(name, ABSENT)) for name in ("mcpServers", "sandbox")
    )


def _capabilities(manifest: _Json) -> dict[Any, dict[str, Any]]:
    found = _of(manifest, "capabilities")
    if not isinstance(found, list):
        raise Unreadable("A manifest of the loop's agent has no list of capabilities")
    return {_of(capability, "id"): capability for capability in found if isinstance(capability, dict)}


def _items(value: _Json) -> list[Any]:
    return value if isinstance(value, list) else []


def _members(value: _Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _of(value: _Json, name: str) -> Any:
    found = member(value, name, "A part of the loop's agent")
    # Names and versions: whatever else stands there identifies nothing.
    return found if name in ("runtime", "capabilities") or not isinstance(found, dict | list) else object()


def _or_empty(value: _Json) -> JsonValue:
    return {} if value is ABSENT or value is None else value


def _identical(left: _Json, right: _Json) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _equal(left: _Json, right: _Json) -> bool:
    """Canonical equality; what is missing equals only what is missing."""
    if left is ABSENT or right is ABSENT:
        return left is right
    return canonical_request(left) == canonical_request(right)
