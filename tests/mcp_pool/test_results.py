"""Which answers of a server count."""

from __future__ import annotations

import pytest

from services.mcp_pool.failures import AnswerInvalid
from services.mcp_pool.results import check_call_result, check_initialize, check_tools_page


def initialized(**members):
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "serverInfo": {"name": "n", "version": "1"},
        **members,
    }


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"])
def test_five_protocol_versions_are_spoken(version):
    check_initialize(initialized(protocolVersion=version))


def test_another_version_fails_and_is_named():
    with pytest.raises(AnswerInvalid, match="2026-07-28"):
        check_initialize(initialized(protocolVersion="2026-07-28"))


@pytest.mark.parametrize(
    "members",
    [
        {"protocolVersion": 1},
        {"capabilities": []},
        {"serverInfo": None},
        {"serverInfo": {"name": "n"}},
        {"instructions": 1},
        {"_meta": 1},
    ],
)
def test_an_initialize_answer_of_the_wrong_shape_fails(members):
    with pytest.raises(AnswerInvalid, match="initialize"):
        check_initialize(initialized(**members))


def page(**members):
    return {"tools": [{"name": "t", "inputSchema": {"type": "object"}, **members}]}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"unknown": 1},
        {"title": "T", "description": "", "icons": [{"src": "x"}], "_meta": {}},
        {"annotations": {"readOnlyHint": True, "other": 1}, "execution": {"taskSupport": "optional"}},
        {"inputSchema": {"type": "object", "properties": {"a": {}, "b": []}, "required": ["a"]}},
        {"outputSchema": {"type": "object"}},
    ],
)
def test_tools_of_the_mcp_shape_pass_unchanged(members):
    tools, cursor = check_tools_page(page(**members))
    assert tools == page(**members)["tools"]
    assert cursor is None


@pytest.mark.spec("mcp-pool:11.11")
@pytest.mark.parametrize(
    "members",
    [
        {"name": 1},
        {"inputSchema": {}},
        {"inputSchema": True},
        {"inputSchema": {"type": "string"}},
        {"inputSchema": {"type": "object", "properties": {"a": True}}},
        {"inputSchema": {"type": "object", "properties": []}},
        {"inputSchema": {"type": "object", "required": "a"}},
        {"inputSchema": {"type": "object", "required": [1]}},
        {"outputSchema": {}},
        {"outputSchema": None},
        {"description": None},
        {"title": 1},
        {"annotations": {"readOnlyHint": "yes"}},
        {"annotations": []},
        {"icons": {}},
        {"icons": [{}]},
        {"execution": {"taskSupport": "sometimes"}},
        {"_meta": []},
    ],
)
def test_one_bad_tool_fails_the_whole_page(members):
    bad = {"tools": [*page()["tools"], *page(**members)["tools"]]}
    with pytest.raises(AnswerInvalid, match=r"tools\[1\]"):
        check_tools_page(bad)


@pytest.mark.parametrize(
    "result", [None, [], {}, {"tools": {}}, {"tools": [1]}, {"tools": [], "nextCursor": 1}]
)
def test_a_page_of_the_wrong_shape_fails(result):
    with pytest.raises(AnswerInvalid, match="tools/list"):
        check_tools_page(result)


def test_content_defaults_to_nothing_and_unknown_members_of_the_result_stay():
    assert check_call_result({"extra": 1}) == {"extra": 1, "content": []}


def test_unknown_members_of_parts_are_dropped():
    content = [
        {"type": "text", "text": "a", "x": 1, "annotations": {"priority": 1}},
        {"type": "resource", "resource": {"uri": "u", "text": "t", "x": 1}},
        {"type": "resource", "resource": {"uri": "u", "blob": "YQ==", "mimeType": "m", "x": 1}},
        {"type": "resource_link", "uri": "u", "name": "n", "size": 3},
        {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"},
    ]
    assert check_call_result({"content": content})["content"] == [
        {"type": "text", "text": "a", "annotations": {"priority": 1}},
        {"type": "resource", "resource": {"uri": "u", "text": "t"}},
        {"type": "resource", "resource": {"uri": "u", "blob": "YQ==", "mimeType": "m"}},
        {"type": "resource_link", "uri": "u", "name": "n"},
        {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"},
    ]


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        {"content": "x"},
        {"content": None},
        {"content": ["x"]},
        {"content": [{"type": "video"}]},
        {"content": [{"type": ["text"]}]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": 1}]},
        {"content": [{"type": "image", "data": "x"}]},
        {"content": [{"type": "resource", "resource": {"uri": "u"}}]},
        {"structuredContent": []},
        {"structuredContent": None},
        {"isError": "yes"},
        {"_meta": []},
    ],
)
def test_a_call_result_of_the_wrong_shape_fails(result):
    with pytest.raises(AnswerInvalid, match="tools/call"):
        check_call_result(result)
