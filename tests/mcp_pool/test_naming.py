"""Names and records of a server's tools."""

from __future__ import annotations

import pytest

from services.mcp_pool.declarations import ServerName
from services.mcp_pool.naming import record_tools

SERVER = ServerName(None, "cap", "srv")


def tool(name, schema=None, **members):
    return {"name": name, "inputSchema": schema or {"type": "object"}, **members}


def names(recorded):
    return [record["name"] for record in recorded.records]


def test_names_join_server_and_tool_whatever_their_characters():
    recorded = record_tools(SERVER, [tool("issues.list"), tool("café 😀"), tool("x" * 200)], set())
    assert names(recorded) == ["srv__issues.list", "srv__café 😀", "srv__" + "x" * 200]
    assert recorded.records[0]["serverToolName"] == "issues.list"


@pytest.mark.spec("mcp-pool:11.9")
def test_a_tool_listed_twice_is_kept_once():
    tools = [tool("a", description="first"), tool("a", description="second")]
    recorded = record_tools(SERVER, tools, set())
    assert [record["description"] for record in recorded.records] == ["first"]
    assert recorded.omitted == ["srv__a"]


def test_taken_names_are_shared_by_the_servers_of_one_agent():
    taken = {"srv__own"}
    assert record_tools(SERVER, [tool("own"), tool("a")], taken).omitted == ["srv__own"]
    assert taken == {"srv__own", "srv__a"}


@pytest.mark.spec("mcp-pool:11.12")
def test_schemas_that_cannot_be_used_leave_a_tool_or_its_output_schema_out():
    conditional = {"type": "object", "if": {}}
    hidden = {"type": "object", "$defs": {"unused": {"if": {}}}}
    recorded = record_tools(
        SERVER,
        [
            tool("conditional", conditional),
            tool("hidden", hidden),
            tool("negated", outputSchema={"type": "object", "not": {"type": "string"}}),
            tool("typed", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
        ],
        set(),
    )
    assert recorded.omitted == ["srv__conditional"]
    assert names(recorded) == ["srv__hidden", "srv__negated", "srv__typed"]
    assert [("outputSchema" in record) for record in recorded.records] == [False, False, True]
    assert recorded.records[0]["inputSchema"] == hidden


@pytest.mark.spec("mcp-pool:11.13")
def test_old_definitions_need_the_old_drafts_name():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {}}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    recorded = record_tools(SERVER, [tool("plain", schema), tool("old", old)], set())
    assert recorded.omitted == ["srv__plain"]
    assert names(recorded) == ["srv__old"]


def test_records_hold_what_is_there_in_the_documents_order():
    child = ServerName("child", "cap", "srv")
    (record,) = record_tools(
        child, [tool("a", description="d", outputSchema={"type": "object"})], set()
    ).records
    assert list(record) == [
        "agentId",
        "capabilityId",
        "serverName",
        "serverToolName",
        "name",
        "description",
        "inputSchema",
        "outputSchema",
    ]
    (bare,) = record_tools(SERVER, [tool("b", description="")], set()).records
    assert list(bare) == ["capabilityId", "serverName", "serverToolName", "name", "inputSchema"]


def test_a_tool_without_a_name_is_skipped_without_a_trace():
    recorded = record_tools(SERVER, [tool(""), tool("a")], set())
    assert names(recorded) == ["srv__a"]
    assert recorded.omitted == []
