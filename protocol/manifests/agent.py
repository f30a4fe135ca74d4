"""One agent manifest, schema version 4 (agent-engine 2), without the workflows it embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from protocol.manifests.place import Place, quote
from protocol.manifests.sandbox import SANDBOX_TOOLS, check_sandbox_spec
from protocol.manifests.shape import (
    JS_WHITESPACE,
    Members,
    any_array,
    any_object,
    choice,
    closed_object,
    filled_string,
    optional_objects,
    optional_strings,
    plain_string,
    same_json,
    string_array,
    string_map,
    version,
)

DELEGATE_INPUT_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "description": "A complete, self-contained task. The agent sees nothing else.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}
"""The input schema of every tool that is an agent; part of hashed manifests."""

HOOK_POINTS: Final = (("before", "turn"), ("before", "step"), ("after", "step"), ("after", "turn"))
"""The hook points in the only order a capability may list them."""

_MANIFEST: Final = Members(
    "manifestSchemaVersion id capabilities", "name description metadata outputSchema runtime"
)
_RUNTIME: Final = Members("")
_CAPABILITY: Final = Members(
    "id type", "name description metadata instructions skills tools mcpServers sandbox hooks"
)
_TOOL: Final = Members("name inputSchema", "description outputSchema agent")
_SKILL: Final = Members("name description")
_STDIO_SERVER: Final = Members("name type command", "args env cwd")
_REMOTE_SERVER: Final = Members("name type url", "headers")
_HOOK: Final = Members("at scope")


@dataclass(frozen=True, slots=True)
class Embedded:
    """A document inside another one that is still to be checked.

    `depth` is where the root node of a workflow stands among the nodes of the flows around it, counted from 1;
    0 where nesting is not limited.
    """

    value: Any
    place: Place
    depth: int = 0


@dataclass(slots=True)
class _Seen:
    """What has to be unique over all capabilities of one manifest, and what is left for the walk."""

    capabilities: set[str]
    tools: set[str]
    servers: set[str]
    skills: set[str]
    sandboxes: list[Embedded]
    delegates: list[Embedded]


def is_workflow(value: object) -> bool:
    """Whether a document claims to be a workflow; the others are read as agent manifests."""
    return isinstance(value, dict) and value.get("kind") == "workflow"


def check_agent(value: object, place: Place, _depth: int = 0) -> list[Embedded]:
    """Check one agent manifest and the agents that are its tools; returns the workflows that are its tools.

    Agents as tools have no agents themselves, so this goes exactly one level down. Raises `ManifestInvalid`.
    """
    seen = _check_own(value, place)
    sandboxes = seen.sandboxes
    workflows = []
    for tool in seen.delegates:
        child = _check_delegate(tool.value, tool.place)
        if is_workflow(child.value):
            if child.value.get("sandbox"):
                sandboxes.append(Embedded(child.value["sandbox"], child.place / "sandbox"))
            workflows.append(child)
            continue
        inner = _check_own(child.value, child.place)
        if inner.delegates:
            (inner.delegates[0].place / "agent").refuse(
                "an agent that is a tool can't have agents as tools itself; move this one to the outer agent"
            )
        sandboxes.extend(inner.sandboxes)
    for other in sandboxes[1:]:
        if not same_json(other.value, sandboxes[0].value):
            other.place.refuse(
                f"differs from the sandbox at {sandboxes[0].place}; an agent and the agents it has as tools "
                "share one sandbox, so give them the same specification"
            )
    return workflows


def _check_own(value: object, place: Place) -> _Seen:
    manifest = closed_object(value, place, _MANIFEST)
    version(manifest, "manifestSchemaVersion", place, 4)
    filled_string(manifest["id"], place / "id")
    if "name" in manifest:
        filled_string(manifest["name"], place / "name")
    optional_strings(manifest, place, "description")
    optional_objects(manifest, place, "metadata", "outputSchema")
    if "runtime" in manifest:
        closed_object(manifest["runtime"], place / "runtime", _RUNTIME)
    seen = _Seen(set(), set(), set(), set(), [], [])
    at = place / "capabilities"
    for index, capability in enumerate(any_array(manifest["capabilities"], at)):
        _check_capability(capability, at / index, seen)
    if len(seen.sandboxes) > 1:
        seen.sandboxes[1].place.refuse("only one capability of an agent may declare a sandbox")
    return seen


def _check_capability(value: object, place: Place, seen: _Seen) -> None:
    capability = closed_object(value, place, _CAPABILITY)
    _unique(filled_string(capability["id"], place / "id"), place / "id", seen.capabilities, "capability id")
    choice(capability["type"], place / "type", ("agent", "agent-plugin"))
    if "name" in capability:
        filled_string(capability["name"], place / "name")
    optional_strings(capability, place, "description")
    optional_objects(capability, place, "metadata")
    if "instructions" in capability:
        string_array(capability["instructions"], place / "instructions")
    if "skills" in capability:
        at = place / "skills"
        for key, skill in _filled_map(capability["skills"], at).items():
            _check_skill(key, skill, at / key, seen)
    tools: set[str] = set()
    if "tools" in capability:
        at = place / "tools"
        for index, tool in enumerate(any_array(capability["tools"], at)):
            tools.add(_check_tool(tool, at / index, seen))
    if "mcpServers" in capability:
        at = place / "mcpServers"
        for key, server in _filled_map(capability["mcpServers"], at).items():
            _check_server(key, server, at / key, seen)
    if "sandbox" in capability:
        check_sandbox_spec(capability["sandbox"], place / "sandbox")
        missing = [name for name in SANDBOX_TOOLS if name not in tools]
        if missing:
            (place / "sandbox").refuse(
                f"a capability with a sandbox declares the tools {', '.join(SANDBOX_TOOLS)}; "
                f"missing: {', '.join(missing)}"
            )
        seen.sandboxes.append(Embedded(capability["sandbox"], place / "sandbox"))
    if "hooks" in capability:
        _check_hooks(capability["hooks"], place / "hooks")


def _check_tool(value: object, place: Place, seen: _Seen) -> str:
    tool = closed_object(value, place, _TOOL)
    name = _unique(filled_string(tool["name"], place / "name"), place / "name", seen.tools, "tool name")
    optional_strings(tool, place, "description")
    any_object(tool["inputSchema"], place / "inputSchema")
    optional_objects(tool, place, "outputSchema")
    if "agent" in tool:
        seen.delegates.append(Embedded(tool, place))
    return name


def _check_delegate(tool: dict[str, Any], place: Place) -> Embedded:
    """The rules between a tool and the agent it is; what the agent's document says is checked by others."""
    at = place / "agent"
    child = any_object(tool["agent"], at)
    if "id" not in child:
        (at / "id").refuse("is required and missing")
    if filled_string(child["id"], at / "id") != tool["name"]:
        (place / "name").refuse(
            f"must equal the agent's id {quote(child['id'])}, not be {quote(tool['name'])}"
        )
    description = plain_string(child.get("description", ""), at / "description")
    if not description.strip(JS_WHITESPACE):
        (at / "description").refuse("an agent that is a tool needs a description that is not blank")
    if tool.get("description") != description:
        (place / "description").refuse("must equal the agent's description; copy it to the tool")
    if not same_json(tool["inputSchema"], DELEGATE_INPUT_SCHEMA):
        (place / "inputSchema").refuse("must be exactly the delegate schema (one required string 'task')")
    if "outputSchema" in tool:
        (place / "outputSchema").refuse("a tool that is an agent has none; take it out")
    return Embedded(child, at)


def _check_skill(key: str, value: object, place: Place, seen: _Seen) -> None:
    skill = closed_object(value, place, _SKILL)
    filled_string(skill["description"], place / "description")
    _named_as(key, filled_string(skill["name"], place / "name"), place)
    _unique(key, place, seen.skills, "skill name")


def _check_server(key: str, value: object, place: Place, seen: _Seen) -> None:
    server = any_object(value, place)
    kind = choice(server.get("type"), place / "type", ("stdio", "streamable-http", "sse"))
    if kind == "stdio":
        closed_object(server, place, _STDIO_SERVER)
        filled_string(server["command"], place / "command")
        if "args" in server:
            string_array(server["args"], place / "args")
        optional_strings(server, place, "cwd")
        maps = "env"
    else:
        closed_object(server, place, _REMOTE_SERVER)
        filled_string(server["url"], place / "url")
        maps = "headers"
    if maps in server:
        string_map(server[maps], place / maps)
    _named_as(key, filled_string(server["name"], place / "name"), place)
    _unique(key, place, seen.servers, "MCP server name")


def _check_hooks(value: object, place: Place) -> None:
    hooks = any_array(value, place)
    if not hooks:
        place.refuse("must not be an empty list; leave it out")
    last = -1
    for index, entry in enumerate(hooks):
        hook = closed_object(entry, place / index, _HOOK)
        at = choice(hook["at"], place / index / "at", ("before", "after"))
        scope = choice(hook["scope"], place / index / "scope", ("turn", "step"))
        rank = HOOK_POINTS.index((at, scope))
        if rank == last:
            (place / index).refuse(f"the hook {at}-{scope} is listed twice")
        if rank < last:
            (place / index).refuse("hooks go in the order before-turn, before-step, after-step, after-turn")
        last = rank


def _filled_map(value: object, place: Place) -> dict[str, Any]:
    entries = any_object(value, place)
    if not entries:
        place.refuse("must not be an empty object; leave it out")
    return entries


def _named_as(key: str, name: str, place: Place) -> None:
    if name != key:
        (place / "name").refuse(f"must equal its key {quote(key)}, not be {quote(name)}")


def _unique(name: str, place: Place, taken: set[str], what: str) -> str:
    if name in taken:
        place.refuse(f"the {what} {quote(name)} is used twice; it must be unique in the whole manifest")
    taken.add(name)
    return name
