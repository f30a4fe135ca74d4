"""Which MCP servers a manifest declares, and in which order."""

import pytest

from protocol.mcp_client import ACCEPTED_VERSIONS, PROTOCOL_VERSION, initialize_params
from protocol.mcp_servers import ServerDeclared, agents_of, servers_of

FAR = {"type": "sse", "url": "https://far.example/sse"}
NEAR = {"type": "stdio", "command": "near"}


def capability(id_, servers=None, tools=()):
    return {"id": id_, "mcpServers": servers or {}, "tools": list(tools)}


def test_the_root_s_servers_come_first_then_those_of_its_agents_one_level_deep():
    inner = {"id": "inner", "capabilities": [capability("deep", {"deep": FAR})]}
    child = {"id": "child", "capabilities": [capability("c", {"far": NEAR}, [{"agent": inner}])]}
    flow = {"id": "flow", "kind": "workflow", "capabilities": [capability("f", {"flow": FAR})]}
    manifest = {
        "capabilities": [
            capability(
                "a", {"far": FAR, "near": NEAR}, [{"agent": child}, {"agent": flow}, {"name": "plain"}]
            ),
            capability("b", {"far": FAR}),
        ]
    }
    assert servers_of(manifest) == [
        ServerDeclared(None, "a", "far", FAR),
        ServerDeclared(None, "a", "near", NEAR),
        ServerDeclared(None, "b", "far", FAR),
        ServerDeclared("child", "c", "far", NEAR),
    ]
    assert [agent_id for agent_id, _ in agents_of(manifest)] == [None, "child"]
    assert [server.is_stdio for server in servers_of(manifest)] == [False, True, False, True]
    assert [server.plugin_key for server in servers_of(manifest)] == ["a", "a", "b", "child/c"]


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"capabilities": None},
        {"capabilities": [None, 1, "x", []]},
        {"capabilities": [{"mcpServers": {"far": FAR}}]},
        {"capabilities": [capability("a", ["far"])]},
        {
            "capabilities": [
                capability("a", None, [{"agent": {"capabilities": [capability("c", {"far": FAR})]}}])
            ]
        },
    ],
)
def test_what_has_the_wrong_shape_declares_nothing(manifest):
    assert servers_of(manifest) == []


def test_a_declaration_of_the_wrong_shape_is_an_empty_one():
    assert servers_of({"capabilities": [capability("a", {"far": "x"})]}) == [
        ServerDeclared(None, "a", "far", {})
    ]


def test_the_version_that_is_offered_is_one_that_is_accepted():
    assert PROTOCOL_VERSION == ACCEPTED_VERSIONS[0] == initialize_params()["protocolVersion"]
