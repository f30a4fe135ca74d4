from __future__ import annotations

from typing import Any

import pytest

from protocol.model_answers import FAILURE_CODES
from tests.engine.support import HELPER, PLAIN, agent, call, calls, following, start, text, tool


@pytest.mark.spec("agent-engine:23.6")
def test_an_empty_answer_completes_and_stays_in_the_prompt() -> None:
    first = start(PLAIN).model("")
    assert (first.result.status, first.result.output) == ("completed", "")
    later = following(first, PLAIN, "again").start()
    assert later.prompt()[2] == {
        "kind": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": ""}],
    }


@pytest.mark.spec("agent-engine:23.7")
def test_a_candidate_without_blocks_is_not_shown_later() -> None:
    first = start(PLAIN).model({"output": []})
    assert (first.result.status, first.result.output) == ("completed", "")
    later = following(first, PLAIN, "again").start()
    assert [item["role"] for item in later.prompt()] == ["system", "user", "user"]


@pytest.mark.spec("agent-engine:23.8")
def test_unknown_members_are_dropped_outside_and_refused_inside_blocks() -> None:
    accepted = start(PLAIN).model({"output": [text("x")], "foo": 1})
    assert accepted.result.status == "completed"
    assert accepted.entries[1]["candidate"] == {"output": [text("x")]}
    refused = start(PLAIN).model({"output": [text("x", foo=1)]})
    assert refused.error == {
        "code": "model.invalid-candidate",
        "message": "Model output[0] has unknown key 'foo'",
    }


@pytest.mark.spec("agent-engine:23.9")
@pytest.mark.parametrize("code", sorted(FAILURE_CODES))
def test_a_failure_outcome_fails_the_turn_with_its_code(code: str) -> None:
    failure = {"kind": "failed", "code": code, "message": "m", "retryable": True, "retryAfterMs": "soon"}
    player = start(PLAIN).model(failure)
    assert player.error == {"code": f"model.{code}", "message": "m"}
    assert [entry["kind"] for entry in player.entries] == ["input"]


@pytest.mark.spec("agent-engine:23.9")
@pytest.mark.parametrize(
    "failure",
    [
        {"kind": "failed", "code": "overloaded", "message": "m"},
        {"kind": "failed", "code": "overloaded", "message": 5, "retryable": True},
        {"kind": "failed", "code": "broken", "message": "m", "retryable": True},
        {"kind": "failed", "code": ["overloaded"], "message": "m", "retryable": True},
        {"kind": "failed", "output": []},
    ],
)
def test_another_failure_is_no_candidate(failure: Any) -> None:
    assert start(PLAIN).model(failure).error["code"] == "model.invalid-candidate"


INVALID: list[tuple[Any, str]] = [
    (None, "Model candidate must be an object or string"),
    (5, "Model candidate must be an object or string"),
    ([], "Model candidate must be an object or string"),
    ({}, "Model candidate output must be an array"),
    ({"output": {}}, "Model candidate output must be an array"),
    ({"output": [5]}, "Model output[0] must be an object"),
    ({"output": [text("a"), {"type": "image"}]}, "Model output[1] has unknown type"),
    ({"output": [{"type": ["text"]}]}, "Model output[0] has unknown type"),
    ({"output": [{"type": "text"}]}, "Model output[0].text must be a string"),
    ({"output": [{"type": "reasoning", "text": 1}]}, "Model output[0].text must be a string"),
    ({"output": [call("c", "t") | {"id": 5}]}, "Model output[0].id must be a string"),
    ({"output": [call("c", "t") | {"name": None}]}, "Model output[0].name must be a string"),
    ({"output": [call("c", "t") | {"raw": 1}]}, "Model output[0].raw must be a string"),
    ({"output": [call("c", "t") | {"args": []}]}, "Model output[0].args must be a JSON object"),
    ({"output": [{"type": "tool-call"}]}, "Model output[0].args must be a JSON object"),
    ({"output": [{"type": "json"}]}, "Model output[0].value must be JSON-safe"),
    (
        {"output": [text("a", providerMetadata=[])]},
        "Model output[0].providerMetadata must be a JSON object",
    ),
    ({"output": [], "finishReason": "error"}, "Model candidate finishReason cannot be error or aborted"),
    ({"output": [], "finishReason": "aborted"}, "Model candidate finishReason cannot be error or aborted"),
    ({"output": [], "finishReason": "done"}, "Model candidate finishReason is invalid"),
    ({"output": [], "finishReason": None}, "Model candidate finishReason is invalid"),
    ({"output": [], "usage": []}, "Model candidate usage must be an object"),
    ({"output": [], "usage": {"tokens": 1}}, "Model candidate usage has unknown key 'tokens'"),
    (
        {"output": [], "usage": {"inputTokens": -1}},
        "Model candidate usage.inputTokens must be a non-negative integer",
    ),
    (
        {"output": [], "usage": {"totalTokens": 1.5}},
        "Model candidate usage.totalTokens must be a non-negative integer",
    ),
    (
        {"output": [], "usage": {"totalTokens": True}},
        "Model candidate usage.totalTokens must be a non-negative integer",
    ),
    (
        {"output": [], "usage": {"costUsd": float("inf")}},
        "Model candidate usage.costUsd must be a finite number",
    ),
    ({"output": [], "evidence": 5}, "Model candidate evidence must be an object"),
    ({"output": [], "evidence": {"x": 1}}, "Model candidate evidence has unknown key 'x'"),
    (
        {"output": [], "evidence": {"requestId": 1}},
        "Model candidate evidence.requestId must be a string",
    ),
    (
        {"output": [], "evidence": {"resolvedModel": None}},
        "Model candidate evidence.resolvedModel must be a string",
    ),
    (
        {"output": [], "evidence": {"warnings": "w"}},
        "Model candidate evidence.warnings must be an array of strings",
    ),
    (
        {"output": [], "evidence": {"warnings": [1]}},
        "Model candidate evidence.warnings must be an array of strings",
    ),
]


@pytest.mark.parametrize(("value", "message"), INVALID)
def test_an_invalid_candidate_fails_the_turn_and_says_why(value: Any, message: str) -> None:
    player = start(PLAIN).model(value)
    assert player.error == {"code": "model.invalid-candidate", "message": message}
    assert [entry["kind"] for entry in player.entries] == ["input"]


def test_an_outcome_without_a_value_is_no_candidate() -> None:
    from gateway.engine.contract import Completed

    player = start(PLAIN)
    player.answer(player.only("model"), Completed({}))
    assert player.error["message"] == "Model candidate must be an object or string"


def test_everything_a_candidate_may_hold_is_stored() -> None:
    candidate = {
        "output": [
            text("a", providerMetadata={"p": 1}),
            {"type": "reasoning", "text": "r"},
            {"type": "json", "value": None},
        ],
        "finishReason": "content-filter",
        "usage": {"inputTokens": 1, "cacheWriteTokens": 2, "reasoningTokens": 0, "costUsd": 0.1},
        "evidence": {"requestId": "q", "resolvedModel": "m", "warnings": ["w"], "extras": {"k": []}},
    }
    assert start(PLAIN).model(candidate).entries[1]["candidate"] == candidate


@pytest.mark.spec("agent-engine:23.10")
def test_calls_that_share_an_id_all_fail_under_new_ids() -> None:
    player = start(HELPER).model(calls(call("x", "lookup", word="a"), call("x", "lookup", word="b")))
    assert [effect.kind for effect in player.in_flight.values()] == ["model"]
    player.model("ok")
    assert player.results() == [
        {
            "callId": f"call_T1_0_{number}",
            "toolName": "lookup",
            "kind": "failed",
            "code": "tool.duplicate-call-id",
            "message": "Duplicate Tool call id 'x'",
        }
        for number in (1, 2)
    ]
    stored = player.entries[1]["candidate"]["output"]
    assert [block["id"] for block in stored] == ["call_T1_0_1", "call_T1_0_2"]


def test_a_call_without_id_and_name_is_stored_with_both_and_fails() -> None:
    nameless = {"type": "tool-call", "args": {"a": 1}, "raw": "{", "providerMetadata": {}}
    player = start(agent(tool("t"))).model(calls(nameless, call("", "t"))).model("ok")
    assert player.entries[1]["candidate"]["output"][0] == {
        "type": "tool-call",
        "id": "call_T1_0_1",
        "name": "unknown",
        "args": {"a": 1},
        "providerMetadata": {},
        "raw": "{",
    }
    assert [(result["toolName"], result["code"]) for result in player.results()] == [
        ("unknown", "tool.invalid-call-id"),
        ("t", "tool.invalid-call-id"),
    ]
    assert player.results()[0]["message"] == "Tool call id must not be empty"


def test_what_a_model_wrote_raw_is_kept_and_not_sent_again() -> None:
    player = start(agent(tool("t"))).model(calls(call("c", "t", z=1, a=2) | {"raw": "{z:1}"})).tool("ok")
    effect = player.in_flight[player.only("model")]
    assert effect.model_call is not None
    sent = effect.model_call.text()
    assert b'{"args":{"z":1,"a":2},"id":"c","name":"t","type":"tool-call"}' in sent
    assert b"raw" not in sent
