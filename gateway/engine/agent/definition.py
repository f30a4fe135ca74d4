"""An agent rebuilt from its manifest and its session tools (agent-engine 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engine.agent.hook_points import HookPoint, registrants_of
from gateway.engine.agent.session_tools import owned_session_tools
from gateway.engine.agent.texts import INPUT_SCHEMA_NOT_OBJECT
from gateway.engine.contract import EngineRefused
from gateway.engine.fragments import Fragment, fragment, quote, shared
from protocol.json_schema import Schema, SchemaUnsupported, compile_schema


class SchemaRefused(EngineRefused):
    """A schema can't be compiled; `reason` is the validator's own text, without the place."""

    def __init__(self, code: str | None, what: str, reason: str) -> None:
        super().__init__(code, f"Unsupported JSON Schema of {what}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it and as calls refer to it."""

    name: str
    capability_id: str
    reference: Mapping[str, Any]
    input_schema: Schema
    output_schema: Schema | None
    listing: Fragment
    agent: Mapping[str, Any] | None = None
    """The manifest of the agent or flow that runs when the tool is called; None for a hosted tool."""


@dataclass(frozen=True, slots=True)
class ToolList:
    """The tools that one step shows, in the model's order."""

    tools: tuple[Tool, ...]
    by_name: Mapping[str, Tool]
    by_place: Mapping[tuple[str, str], Tool]
    """The tools by capability and name, which saved calls refer to."""
    duplicates: tuple[str, ...]
    """Names that more than one of the tools has: such a step fails."""
    listing: Fragment

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> ToolList:
        """The list of these tools."""
        by_name: dict[str, Tool] = {}
        duplicates: dict[str, None] = {}
        for tool in tools:
            if by_name.setdefault(tool.name, tool) is not tool:
                duplicates[tool.name] = None
        canonical = b"[" + b",".join(tool.listing.canonical for tool in tools) + b"]"
        wire = canonical
        if any(tool.listing.wire is not tool.listing.canonical for tool in tools):
            wire = b"[" + b",".join(tool.listing.wire for tool in tools) + b"]"
        by_place = {(tool.capability_id, tool.name): tool for tool in tools}
        return cls(tuple(tools), by_name, by_place, tuple(duplicates), shared(canonical, wire))


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """Everything of an agent that does not change while it runs; shared between runs."""

    agent_id: str
    capability_ids: frozenset[str]
    hooks: Mapping[HookPoint, tuple[str, ...]]
    """Who listens at each hook point (`registrants_of`)."""
    instructions: tuple[str, ...]
    tools: ToolList
    output_contract: Mapping[str, Any] | None
    output_schema: Schema | None
    output_schema_text: Fragment | None

    def tool_of(self, reference: Mapping[str, Any]) -> Tool | None:
        """The tool that a call's reference names, None when it is gone."""
        return self.tools.by_place.get((reference["capabilityId"], reference["toolName"]))

    def output_schema_of(self, reference: Mapping[str, Any]) -> Schema | None:
        """The output schema of the tool that a call's reference names."""
        tool = self.tool_of(reference)
        return None if tool is None else tool.output_schema

    def size(self) -> int:
        """A rough measure, in bytes, of what the definition adds to its manifest."""
        listing = self.tools.listing
        return 4096 + 2048 * len(self.tools.tools) + 6 * (len(listing.canonical) + len(listing.wire))


def build_definition(
    manifest: Mapping[str, Any], session_tools: Sequence[Any], root_agent_id: str
) -> AgentDefinition:
    """Rebuilds the agent of a valid manifest.

    Raises EngineRefused `agent.build-failed` for session tools that don't fit, `tool.invalid-schema` for
    an input schema that isn't one of an object, and SchemaRefused for a schema that can't be compiled:
    `output.invalid-schema` for the agent's own, without a code for a tool's.
    """
    extra = owned_session_tools(manifest, session_tools, root_agent_id)
    tools: list[Tool] = []
    instructions: list[str] = []
    for capability in manifest["capabilities"]:
        capability_id = capability["id"]
        instructions.extend(capability.get("instructions", ()))
        tools.extend(
            _tool(capability_id, declared, declared.get("agent")) for declared in capability.get("tools", ())
        )
        tools.extend(_tool(capability_id, tool.declaration) for tool in extra.get(capability_id, ()))
    contract = manifest.get("outputSchema")
    return AgentDefinition(
        agent_id=manifest["id"],
        capability_ids=frozenset(capability["id"] for capability in manifest["capabilities"]),
        hooks=registrants_of(manifest["capabilities"]),
        instructions=tuple(instructions),
        tools=ToolList.of(tools),
        output_contract=contract,
        output_schema=None
        if contract is None
        else _compile(contract, "outputSchema", "output.invalid-schema"),
        output_schema_text=None if contract is None else fragment(contract),
    )


def _tool(capability_id: str, declared: Mapping[str, Any], agent: Mapping[str, Any] | None = None) -> Tool:
    name = declared["name"]
    input_schema = declared["inputSchema"]
    output_schema = declared.get("outputSchema")
    if input_schema.get("type") != "object":
        raise EngineRefused("tool.invalid-schema", INPUT_SCHEMA_NOT_OBJECT)
    descriptor: dict[str, Any] = {"name": name}
    if declared.get("description"):
        descriptor["description"] = declared["description"]
    descriptor["inputSchema"] = input_schema
    listed = fragment(input_schema)
    if output_schema is not None:
        descriptor["outputSchema"] = output_schema
    description = descriptor.get("description")
    head = b"{" if description is None else b'{"description":%b,' % quote(description)
    tail = b',"name":%b}' % quote(name)
    return Tool(
        name=name,
        capability_id=capability_id,
        reference={"capabilityId": capability_id, "toolName": name, "descriptor": descriptor},
        agent=agent,
        input_schema=_compile(input_schema, f"tool '{name}' inputSchema"),
        output_schema=None
        if output_schema is None
        else _compile(output_schema, f"tool '{name}' outputSchema"),
        listing=shared(
            b'%b"inputSchema":%b%b' % (head, listed.canonical, tail),
            b'%b"inputSchema":%b%b' % (head, listed.wire, tail),
        ),
    )


def _compile(schema: Mapping[str, Any], what: str, code: str | None = None) -> Schema:
    try:
        return compile_schema(schema)
    except SchemaUnsupported as error:
        raise SchemaRefused(code, what, str(error)) from None
