"""A server's tools compared with a session's snapshot: which tool, and which member of it."""

from __future__ import annotations

from services.mcp_pool.declarations import ServerName
from services.mcp_pool.naming import record_tools
from services.mcp_pool.tool_pins import Difference, differences, pins_of_listing, pins_of_records

SERVER = ServerName(None, "cap", "srv")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}


def tool(name="t", **members):
    return {"name": name, "description": "d", "inputSchema": SCHEMA, **members}


def changes(before, after):
    return differences(pins_of_listing(SERVER, before), pins_of_listing(SERVER, after))


def test_the_same_tools_do_not_differ_whatever_their_order_and_that_of_their_keys():
    turned = {"properties": dict(reversed(SCHEMA["properties"].items())), "type": "object"}
    assert changes([tool("a"), tool("b")], [tool("b"), tool("a", inputSchema=turned)]) == []


def test_each_member_that_differs_is_named():
    after = tool(description="e", inputSchema={"type": "object"}, outputSchema={"type": "object"})
    assert changes([tool()], [after]) == [
        Difference("t", "description"),
        Difference("t", "inputSchema"),
        Difference("t", "outputSchema"),
    ]


def test_tools_that_come_and_go_are_named():
    assert changes([tool("old")], [tool("new")]) == [Difference("new", "added"), Difference("old", "removed")]


def test_what_a_snapshot_does_not_record_is_no_difference():
    assert changes([tool()], [tool(title="T", annotations={"readOnlyHint": True}, _meta={})]) == []
    assert changes([tool(description="")], [{"name": "t", "inputSchema": SCHEMA}]) == []
    bad = {"type": "object", "not": {"type": "string"}}
    assert changes([tool()], [tool(outputSchema=bad), tool("unusable", inputSchema=bad)]) == []


def test_a_tool_that_is_listed_twice_counts_as_its_first():
    assert changes([tool()], [tool(), tool(description="second")]) == []


def test_a_snapshot_pins_the_same_as_the_listing_that_it_was_made_of():
    tools = [tool("a"), tool("b", outputSchema={"type": "object"}), {"name": "c", "inputSchema": SCHEMA}]
    records = record_tools(SERVER, tools, set()).records
    assert pins_of_records(records) == pins_of_listing(SERVER, tools)
