"""What events say to a person at a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from cli.event_lines import RESULT_WIDTH, Said, said


def outcome(value: Any) -> dict[str, Any]:
    return {"toolName": "look", "outcome": {"value": value}}


def output(*blocks: Any) -> dict[str, Any]:
    return {"outcome": {"value": {"output": list(blocks)}}}


@pytest.mark.parametrize(
    ("name", "payload", "shown"),
    [
        ("message.assistant", {"outcome": {"value": "Hi"}}, [Said("answer", "Hi")]),
        ("message.assistant", {"outcome": {"value": {"output": "Hi"}}}, [Said("answer", "Hi")]),
        (
            "message.assistant",
            output(
                {"type": "reasoning", "text": "Hm."},
                {"type": "text", "text": "I look."},
                {"type": "text", "text": " "},
                {"type": "tool-call", "name": "look", "args": {"word": "ox"}},
            ),
            [Said("thought", "Hm."), Said("answer", "I look."), Said("call", 'look {"word": "ox"}')],
        ),
        (
            "message.assistant",
            {"compaction": {}, **output({"type": "text", "text": "sum"})},
            [Said("note", "summed the conversation up, to make room")],
        ),
        (
            "tool.completed",
            outcome({"kind": "completed", "output": "beast"}),
            [Said("result", "look: beast")],
        ),
        ("tool.completed", outcome([1]), [Said("result", "look: [1]")]),
        (
            "tool.completed",
            outcome({"kind": "completed", "output": {"exitCode": 2, "stdout": "", "stderr": "no\n"}}),
            [Said("result", "look: exit 2: no")],
        ),
        (
            "tool.completed",
            outcome({"kind": "failed", "code": "endpoint.missing", "message": "no\x1b[2J"}),
            [Said("problem", "look failed: endpoint.missing no\ufffd[2J")],
        ),
        (
            "tool.completed",
            outcome({"kind": "denied", "reason": "never"}),
            [Said("problem", "look denied: never")],
        ),
        ("tool.completed", outcome({"kind": "interaction-required"}), [Said("note", "look asks a person")]),
        (
            "model.failed",
            {"outcome": {"value": {"kind": "failed", "error": {"code": "auth", "message": "no key"}}}},
            [Said("problem", "The model call failed: auth no key")],
        ),
        ("delegation.started", {"agent": {"id": "scout"}}, [Said("note", "asks the agent scout")]),
        (
            "delegation.completed",
            {"agent": {"id": "scout"}, "input": {"outcome": {"kind": "completed", "output": "found"}}},
            [Said("result", "scout: found")],
        ),
        (
            "mcp.discovered",
            {
                "servers": [
                    {"serverName": "a", "outcome": "connected"},
                    {"serverName": "b", "outcome": "failed", "message": "gone"},
                ]
            },
            [Said("problem", "MCP server b: gone")],
        ),
        ("effect.uncertain", {"message": "Who knows?"}, [Said("problem", "Who knows?")]),
        ("transcript.updated", {"keep": 0}, []),
        ("an event of later days", {}, []),
    ],
)
def test_events_are_said_in_words(name: str, payload: dict[str, Any], shown: list[Said]) -> None:
    assert said(name, payload) == shown


@pytest.mark.parametrize("name", ["message.assistant", "tool.completed", "model.failed", "mcp.discovered"])
@pytest.mark.parametrize("value", [None, 1, "x", [None, 1], {"output": [1, {"type": 2}]}, {"error": 3}])
def test_odd_outcomes_are_shown_and_raise_nothing(name: str, value: Any) -> None:
    for one in said(name, {"outcome": {"value": value}, "servers": value}):
        assert one.text


def test_a_long_result_is_one_line() -> None:
    (shown,) = said("tool.completed", outcome({"kind": "completed", "output": "x\n" * 10_000}))
    assert len(shown.text) <= RESULT_WIDTH + len("look: ")
    assert "\n" not in shown.text
