"""The servers of a manifest and of the agents it uses as tools."""

from __future__ import annotations

import pytest

from services.mcp_pool.declarations import DeclaredServer, ServerName, declared_tool_names, servers_of
from tests.mcp_pool.support import parsed


def capability(id_, servers=(), tools=()):
    return {
        "id": id_,
        "mcpServers": {name: {"name": name, "type": "stdio", "command": "x"} for name in servers},
        "tools": list(tools),
    }


CHILD = {
    "name": "child",
    "agent": {"id": "child", "capabilities": [capability("cap", ["inner"], [{"name": "t"}])]},
}
FLOW = {
    "name": "flow",
    "agent": {"kind": "workflow", "id": "flow", "capabilities": [capability("c", ["no"])]},
}


def names(manifest):
    return [(server.name.agent_id, server.name.capability_id, server.name.server_name) for server in manifest]


def test_root_servers_come_first_in_order_then_those_of_child_agents():
    document = {
        "capabilities": [
            capability("b", ["z", "a"], [CHILD, FLOW, {"name": "own"}]),
            capability("a", ["z"]),
        ]
    }
    assert names(servers_of(document, {})) == [
        (None, "b", "z"),
        (None, "b", "a"),
        (None, "a", "z"),
        ("child", "cap", "inner"),
    ]


def test_members_have_javascript_order():
    document = parsed({"capabilities": [capability("c", ["b", "10", "2"])]}).value
    assert [name for _, _, name in names(servers_of(document, {}))] == ["2", "10", "b"]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"capabilities": {}},
        {"capabilities": [1, {"id": 1, "mcpServers": {"a": {}}}, {"id": "c", "mcpServers": []}]},
        {"kind": "workflow"},
    ],
)
def test_a_manifest_without_servers_has_none(document):
    assert servers_of(document, {}) == []


@pytest.mark.spec("mcp-pool:11.42")
def test_plugin_roots_of_child_agents_have_the_agents_id_in_their_key():
    document = {"capabilities": [capability("cap", ["outer"], [CHILD])]}
    found = servers_of(document, {"cap": "/outer", "child/cap": "/inner"})
    assert [server.plugin_root for server in found] == ["/outer", "/inner"]
    assert found[1].name.members() == {"agentId": "child", "capabilityId": "cap", "serverName": "inner"}
    assert found[0].name != ServerName("child", "cap", "outer")


def test_declared_tools_are_kept_apart_by_agent():
    document = {"capabilities": [capability("cap", [], [CHILD, FLOW, {"name": "own"}])]}
    assert declared_tool_names(document) == {None: {"child", "flow", "own"}, "child": {"t"}}


def test_only_stdio_is_local():
    assert DeclaredServer(ServerName(None, "c", "s"), {"type": "stdio"}).is_stdio
    assert not DeclaredServer(ServerName(None, "c", "s"), {"type": "sse"}).is_stdio
    assert not DeclaredServer(ServerName(None, "c", "s"), {}).is_stdio
