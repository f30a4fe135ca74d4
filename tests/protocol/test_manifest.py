from __future__ import annotations

from typing import Any

import pytest

from protocol.manifest import validate_agent_manifest
from tests.protocol.manifests import agent, refusal, tool, with_capability

STDIO = {"name": "s", "type": "stdio", "command": "run"}
REMOTE = {"name": "s", "type": "sse", "url": "https://x"}


@pytest.mark.parametrize(
    "manifest",
    [
        agent(),
        agent(name="N", description="", metadata={"any": [None]}, outputSchema={"if": 1}, runtime={}),
        agent(manifestSchemaVersion=4.0),
        with_capability(name="N", description="", metadata={}, instructions=["", "a"], tools=[]),
        with_capability(tools=[tool(description="", outputSchema={})]),
        with_capability(skills={"s": {"name": "s", "description": "d"}}),
        with_capability(mcpServers={"s": {**STDIO, "args": ["a"], "env": {"A": ""}, "cwd": ""}}),
        with_capability(mcpServers={"s": {**REMOTE, "headers": {"a": "b"}}}),
        with_capability(mcpServers={"s": {**REMOTE, "type": "streamable-http"}}),
        with_capability(hooks=[{"at": "before", "scope": "step"}, {"at": "after", "scope": "turn"}]),
        agent(capabilities=[{"id": "a", "type": "agent"}, {"id": "b", "type": "agent-plugin"}]),
    ],
)
def test_valid_manifests_pass(manifest: Any) -> None:
    validate_agent_manifest(manifest)


@pytest.mark.parametrize(
    ("manifest", "path", "said"),
    [
        (None, "", "must be an object, not null"),
        ([], "", "must be an object, not an array"),
        ({}, "manifestSchemaVersion", "is required and missing"),
        (agent(manifestSchemaVersion=3), "manifestSchemaVersion", "must be 4, not 3"),
        (agent(manifestSchemaVersion="4"), "manifestSchemaVersion", "must be 4, not a string"),
        (agent(manifestSchemaVersion=True), "manifestSchemaVersion", "must be 4, not a boolean"),
        (agent(id=""), "id", "must not be empty"),
        (agent(id=1.5), "id", "must be a string, not a number"),
        (agent(name=""), "name", "must not be empty"),
        (agent(name=None), "name", "must be a string, not null"),
        (agent(description=1), "description", "must be a string"),
        (agent(metadata=[]), "metadata", "must be an object, not an array"),
        (agent(outputSchema=True), "outputSchema", "must be an object, not a boolean"),
        (agent(runtime={"a": 1}), "runtime.a", "unknown member; take it out (members of this object: none)"),
        (agent(model="x"), "model", "unknown member; take it out"),
        (agent(**{"a b\n": 1}), r"['a b\x0a']", "unknown member"),
        (agent(capabilities={}), "capabilities", "must be an array"),
        (agent(capabilities=[5]), "capabilities[0]", "must be an object, not a number"),
        (with_capability(id=""), "capabilities[0].id", "must not be empty"),
        (
            with_capability(type="plugin"),
            "capabilities[0].type",
            "must be 'agent' or 'agent-plugin', not 'plugin'",
        ),
        (with_capability(type=[]), "capabilities[0].type", "not an array"),
        (with_capability(model="x"), "capabilities[0].model", "unknown member"),
        (with_capability(instructions="x"), "capabilities[0].instructions", "must be an array, not a string"),
        (with_capability(instructions=["a", 1]), "capabilities[0].instructions[1]", "must be a string"),
        (with_capability(tools=[{"name": "t"}]), "capabilities[0].tools[0].inputSchema", "is required"),
        (with_capability(tools=[tool(name="")]), "capabilities[0].tools[0].name", "must not be empty"),
        (
            with_capability(tools=[tool(inputSchema=True)]),
            "capabilities[0].tools[0].inputSchema",
            "must be an object",
        ),
        (
            with_capability(tools=[tool(outputSchema=1)]),
            "capabilities[0].tools[0].outputSchema",
            "must be an object",
        ),
        (with_capability(tools=[tool(strict=True)]), "capabilities[0].tools[0].strict", "unknown member"),
        (
            with_capability(tools=[tool(agent=None)]),
            "capabilities[0].tools[0].agent",
            "must be an object, not null",
        ),
        (with_capability(skills={}), "capabilities[0].skills", "must not be an empty object; leave it out"),
        (
            with_capability(skills={"a": {"name": "b", "description": "d"}}),
            "capabilities[0].skills.a.name",
            "must equal its key 'a', not be 'b'",
        ),
        (
            with_capability(skills={"a": {"name": "a", "description": ""}}),
            "capabilities[0].skills.a.description",
            "must not be empty",
        ),
        (with_capability(mcpServers={}), "capabilities[0].mcpServers", "must not be an empty object"),
        (
            with_capability(mcpServers={"a": STDIO}),
            "capabilities[0].mcpServers.a.name",
            "must equal its key 'a'",
        ),
        (
            with_capability(mcpServers={"s": {"name": "s", "type": "http", "url": "x"}}),
            "capabilities[0].mcpServers.s.type",
            "must be 'stdio', 'streamable-http' or 'sse', not 'http'",
        ),
        (
            with_capability(mcpServers={"s": {"name": "s", "type": "stdio"}}),
            "capabilities[0].mcpServers.s.command",
            "is required and missing",
        ),
        (
            with_capability(mcpServers={"s": {**STDIO, "url": "x"}}),
            "capabilities[0].mcpServers.s.url",
            "unknown member",
        ),
        (
            with_capability(mcpServers={"s": {**STDIO, "env": {"A": 1}}}),
            "capabilities[0].mcpServers.s.env.A",
            "must be a string, not a number",
        ),
        (
            with_capability(mcpServers={"s": {**REMOTE, "url": ""}}),
            "capabilities[0].mcpServers.s.url",
            "not be empty",
        ),
        (
            with_capability(mcpServers={"s": {**REMOTE, "headers": []}}),
            "capabilities[0].mcpServers.s.headers",
            "must be an object",
        ),
        (with_capability(hooks=[]), "capabilities[0].hooks", "must not be an empty list"),
        (
            with_capability(hooks=[{"at": "during", "scope": "turn"}]),
            "capabilities[0].hooks[0].at",
            "must be 'before' or 'after', not 'during'",
        ),
        (
            with_capability(hooks=[{"at": "after", "scope": "turn"}, {"at": "after", "scope": "step"}]),
            "capabilities[0].hooks[1]",
            "hooks go in the order before-turn, before-step, after-step, after-turn",
        ),
        (
            with_capability(hooks=[{"at": "after", "scope": "turn"}] * 2),
            "capabilities[0].hooks[1]",
            "the hook after-turn is listed twice",
        ),
    ],
)
def test_a_broken_rule_is_refused_at_its_place(manifest: Any, path: str, said: str) -> None:
    error = refusal(manifest)
    assert error.path == path
    assert said in error.message
    assert str(error) == (f"{path}: {error.message}" if path else error.message)


@pytest.mark.parametrize(
    ("member", "path", "said"),
    [
        ({"id": "a"}, "capabilities[1].id", "the capability id 'a' is used twice"),
        ({"tools": [tool()]}, "capabilities[1].tools[0].name", "the tool name 't' is used twice"),
        (
            {"mcpServers": {"s": REMOTE}},
            "capabilities[1].mcpServers.s",
            "the MCP server name 's' is used twice",
        ),
        (
            {"skills": {"s": {"name": "s", "description": "d"}}},
            "capabilities[1].skills.s",
            "the skill name 's' is used twice",
        ),
    ],
)
def test_names_are_unique_over_all_capabilities(member: dict[str, Any], path: str, said: str) -> None:
    first = {"id": "a", "type": "agent", **member}
    second = {"id": "b", "type": "agent", **member}
    error = refusal(agent(capabilities=[first, second]))
    assert error.path == path
    assert said in error.message


def test_errors_hold_only_short_and_printable_quotes() -> None:
    error = refusal(agent(capabilities=[{"id": "c", "type": "\ud800\n" + "x" * 10_000}]))
    assert len(str(error)) < 300
    assert str(error).isprintable()
    assert "\\ud800\\x0a" in error.message
