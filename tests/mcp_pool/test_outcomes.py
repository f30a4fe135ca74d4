"""From a tool's result to an outcome."""

from __future__ import annotations

import pytest

from services.mcp_pool.outcomes import outcome_of
from services.mcp_pool.results import check_call_result


def text(value):
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def outcome(result):
    return outcome_of(check_call_result(result))


def completed(output):
    return {"kind": "completed", "output": output}


@pytest.mark.spec("mcp-pool:11.35")
def test_text_parts_are_joined_and_other_parts_are_lost():
    assert outcome({"content": [text("a"), IMAGE, text("b")]}) == completed("a\nb")


@pytest.mark.spec("mcp-pool:11.36")
def test_structured_content_wins_over_text_unless_the_tool_failed():
    result = {"structuredContent": {"n": 1}, "content": [text("one")]}
    assert outcome(result) == completed({"n": 1})
    assert outcome({**result, "isError": True}) == {"kind": "failed", "code": "mcp.tool", "message": "one"}


@pytest.mark.spec("mcp-pool:11.37")
def test_empty_results_have_an_output_and_failures_a_message():
    assert outcome({}) == completed([])
    assert outcome({"content": [text("")]}) == completed("")
    assert outcome({"content": [IMAGE]}) == completed([IMAGE])
    for content in ([], [IMAGE], [text("")]):
        failed = outcome({"isError": True, "content": content})
        assert failed["code"] == "mcp.tool"
        assert failed["message"]


def test_error_texts_are_joined():
    assert outcome({"isError": True, "content": [text("a"), text("b")]})["message"] == "a\nb"
