"""What streams of both APIs become, however odd they are (model-executor 13.4)."""

import hashlib
import json
import random

import pytest

from services.model_executor.direct.answer import candidate
from services.model_executor.direct.anthropic_answer import AnthropicStream
from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.failures import CallRefused, ProviderFailed
from services.model_executor.direct.openai_answer import OpenAiStream
from services.model_executor.direct.prompt import read_call
from tests.doubles.providers import delta
from tests.model_executor.support import document, user

OPENAI, ANTHROPIC = "openai-completions", "anthropic-messages"


def gathered(api, events, *, model="", provider="", request_id="", **members):
    """The candidate."""
    config = read_config(
        f'default="p/m"\n[providers.p]\napi="{api}"\n{provider}\n[providers.p.models.m]\n{model}', {}
    )
    call = read_call(json.dumps(json.loads(document(user("hi"))) | members), "e", config.select)
    stream = OpenAiStream(call) if api == OPENAI else AnthropicStream(call)
    for event in events:
        stream.take(event)
    return json.loads(candidate(call, stream.finish(request_id)))


def openai(*events, **more):
    return gathered(OPENAI, events, **more)


def message(*blocks, stop="end_turn", usage=None, start=None, end=True):
    events = [{"type": "message_start", "message": {"model": "a-1", "usage": start}}]
    for index, (block, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage})
    return [*events, {"type": "message_stop"}] if end else events


def anthropic(*blocks, more=None, **parts):
    return gathered(ANTHROPIC, message(*blocks, **parts), **(more or {}))


def signed(signature, **more):
    return {"pi": {"provider": "p", "model": "m", "signature": signature, **more}}


# Blocks


def test_reasoning_stands_where_it_began_and_says_which_field_it_came_in():
    found = openai(
        delta(content="a"),
        delta(reasoning_content="", reasoning="r1", reasoning_text="no"),
        delta(content="b", reasoning="r2"),
        delta("stop"),
    )
    assert found["output"] == [
        {"type": "text", "text": "ab"},
        {
            "type": "reasoning",
            "text": "r1r2",
            "providerMetadata": {**signed("reasoning"), "replay": "turn"},
        },
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_each_reasoning_field_is_read(field):
    found = openai(delta(**{field: "why"}), delta(content="x"), delta("stop"))
    assert found["output"][0]["providerMetadata"]["pi"]["signature"] == field


def piece(arguments="", **more):
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return {"function": function, **more}


def test_pieces_of_tool_calls_are_joined_by_index_else_by_id():
    found = openai(
        delta(tool_calls=[piece('{"a"', id="x", name="one")]),
        delta(tool_calls=[piece('{"b"', id="y", name="two")]),
        delta(tool_calls=[piece(":1}", id="x"), piece(":2}", id="y")]),
        delta("tool_calls"),
    )
    assert [(block["id"], block["name"], block["args"]) for block in found["output"]] == [
        ("x", "one", {"a": 1}),
        ("y", "two", {"b": 2}),
    ]


def test_missing_and_repeated_call_ids_get_one_of_ours():
    ours = "call_" + hashlib.sha256(b"e").hexdigest()[:12]
    found = openai(
        delta(
            tool_calls=[
                piece("{}", index=0, id="same", name="t"),
                piece("{}", index=1, id="same", name="t"),
                piece("{}", index=2, name="t"),
            ]
        ),
        delta("stop"),
    )
    assert [block["id"] for block in found["output"]] == ["same", f"{ours}_1", f"{ours}_2"]
    found = anthropic(
        ({"type": "tool_use", "id": "same", "name": "t"},),
        ({"type": "tool_use", "id": "same", "name": "t"},),
        ({"type": "tool_use", "name": "t"},),
        stop="tool_use",
    )
    assert [block["id"] for block in found["output"]] == ["same", f"{ours}_1", f"{ours}_2"]


def test_anthropic_blocks():
    found = anthropic(
        ({"type": "thinking", "thinking": "a"}, {"type": "thinking_delta", "thinking": "b"}),
        (
            {"type": "thinking", "thinking": "", "signature": "s"},
            {"type": "signature_delta", "signature": "ig"},
        ),
        ({"type": "redacted_thinking", "data": "blob"},),
        ({"type": "text", "text": "x"}, {"type": "text_delta", "text": "y"}),
        ({"type": "tool_use", "id": "i", "name": "t", "input": {"whole": True}},),
        ({"type": "server_tool_use", "id": "no"},),
        stop="tool_use",
    )
    assert found["output"] == [
        {"type": "reasoning", "text": "ab"},
        {"type": "reasoning", "text": "", "providerMetadata": signed("sig")},
        {"type": "reasoning", "text": "", "providerMetadata": signed("blob", redacted=True)},
        {"type": "text", "text": "xy"},
        {"type": "tool-call", "id": "i", "name": "t", "args": {"whole": True}},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1}', {"a": 1}),
        ('```json\n{"a":1}\n```', {"a": 1}),
        ("```\n[1]\n```", [1]),
        ('\n```JSON\r\n{"a":1,}\r\n```\n', {"a": 1}),
        ('{"a":[1,2', {"a": [1, 2]}),
        ("null", None),
        ('"text"', "text"),
    ],
)
def test_structured_answers_are_read_as_the_gate_reads_them(text, value):
    schema = {"outputSchema": {}}
    halves = (text[: len(text) // 2], text[len(text) // 2 :])
    found = openai(*(delta(content=half) for half in halves), delta("stop"), **schema)
    assert found["output"] == [{"type": "json", "value": value}]
    found = anthropic(*(({"type": "text", "text": half},) for half in halves), more=schema)
    assert found["output"] == [{"type": "json", "value": value}]


@pytest.mark.parametrize("text", ["", "prose", "{'a': 1}", "NaN", '{"a":NaN}', "```json\nx\n```"])
def test_a_structured_answer_that_is_none_is_invalid_output(text):
    with pytest.raises(CallRefused) as caught:
        openai(delta(content=text), delta("stop"), outputSchema={})
    assert (caught.value.code, caught.value.retryable) == ("invalid_output", False)


# Usage and evidence


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 10}, (100, 10, 0, 0, 0)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 20},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            (40, 10, 40, 20, 4),
        ),
        ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 30}, (70, 0, 30, 0, 0)),
        ({"prompt_tokens": 100, "cached_tokens": 30}, (70, 0, 30, 0, 0)),
        (
            {
                "prompt_tokens": 100,
                "cached_tokens": 1,
                "prompt_cache_hit_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            (97, 0, 3, 0, 0),
        ),
        ({"prompt_tokens": 10, "cached_tokens": 30}, (0, 0, 30, 0, 0)),
        ({"prompt_tokens": -5, "completion_tokens": "ten", "cached_tokens": True}, (0, 0, 0, 0, 0)),
        (
            {"prompt_tokens": 7.0, "prompt_tokens_details": [], "completion_tokens_details": 3},
            (7, 0, 0, 0, 0),
        ),
    ],
)
def test_openai_usage_wherever_it_stands(usage, expected):
    where = (
        [delta(content="x"), delta("stop"), {"choices": [], "usage": usage}],
        [delta(content="x"), delta("stop", usage=usage)],
        [delta(content="x"), {"choices": [{"delta": {}, "finish_reason": "stop", "usage": usage}]}],
        [
            delta(content="x", usage={"prompt_tokens": 1}),
            delta("stop", usage=dict.fromkeys(usage)),
            {"usage": usage},
        ],
    )
    for events in where:
        found = openai(*events)["usage"]
        inputs, output, cached, written, reasoning = expected
        assert found["inputTokens"] == inputs
        assert found["outputTokens"] == output
        assert found.get("cachedTokens", 0) == cached
        assert found.get("cacheWriteTokens", 0) == written
        assert found.get("reasoningTokens", 0) == reasoning
        assert found["totalTokens"] == inputs + output + cached + written
        assert found["costUsd"] == 0
        assert 0 not in (
            found.get("cachedTokens"),
            found.get("cacheWriteTokens"),
            found.get("reasoningTokens"),
        )


def test_anthropic_usage_is_put_together_from_both_events_and_later_values_win():
    start = {
        "input_tokens": 60,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 5,
        "output_tokens": 1,
    }
    late = {
        "output_tokens": 10,
        "cache_read_input_tokens": None,
        "input_tokens": 61,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    found = anthropic(({"type": "text", "text": "x"},), start=start, usage=late)["usage"]
    assert found == {
        "inputTokens": 61,
        "outputTokens": 10,
        "totalTokens": 116,
        "cachedTokens": 40,
        "cacheWriteTokens": 5,
        "reasoningTokens": 3,
        "costUsd": 0,
    }
    assert "usage" not in anthropic(({"type": "text", "text": "x"},))


@pytest.mark.spec("model-executor:15.46")
def test_costs_have_ten_decimals_and_are_written_as_javascript_does():
    price = "price = {input=0.2, output=1, cache_read=0.05, cache_write=3}"
    usage = {"prompt_tokens": 50, "completion_tokens": 10}
    assert openai(delta(content="x"), delta("stop", usage=usage), model=price)["usage"]["costUsd"] == 0.00002
    config = read_config(f'default="p/m"\n[providers.p]\napi="{OPENAI}"\n[providers.p.models.m]\n{price}', {})
    call = read_call(document(user("hi")), "e", config.select)
    stream = OpenAiStream(call)
    for event in (delta(content="x"), delta("stop", usage=usage)):
        stream.take(event)
    assert '"costUsd":0.00002}' in candidate(call, stream.finish(""))


def test_evidence():
    found = openai(
        delta(content="x"), delta("stop"), request_id="r", model="context_window=5\nmax_output_tokens=3"
    )
    assert found["evidence"] == {
        "resolvedModel": "m-1",
        "requestId": "r",
        "extras": {
            "producer": {"provider": "p", "api": OPENAI, "model": "m"},
            "contextWindow": 5,
            "maxOutputTokens": 3,
        },
    }
    unnamed = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    assert openai(unnamed)["evidence"]["resolvedModel"] == "m"
    assert "requestId" not in openai(unnamed)["evidence"]


# Hostile streams

ATOMS = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**70,
    1.5,
    float("inf"),
    "",
    "x",
    "stop",
    "tool_use",
    "{",
    [],
    {},
    "\ud800",
]
KEYS = [
    "type",
    "index",
    "message",
    "model",
    "usage",
    "content_block",
    "delta",
    "text",
    "thinking",
    "signature",
    "partial_json",
    "stop_reason",
    "id",
    "name",
    "input",
    "data",
    "choices",
    "content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function",
    "arguments",
    "finish_reason",
    "prompt_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "completion_tokens",
    "output_tokens",
    "error",
    "code",
]
TYPES = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "message_delta",
    "message_stop",
    "ping",
]


def odd_value(source, depth):
    roll = source.random()
    if depth == 0 or roll < 0.35:
        return source.choice(ATOMS)
    if roll < 0.5:
        return [odd_value(source, depth - 1) for _ in range(source.randrange(3))]
    return {source.choice(KEYS): odd_value(source, depth - 1) for _ in range(source.randrange(5))}


def odd_event(source):
    event = odd_value(source, 4)
    if isinstance(event, dict):
        if source.random() < 0.6:
            event["type"] = source.choice(TYPES)
        if source.random() < 0.5:
            event["index"] = source.choice([0, 1, True, -1, "0", None, 10**9])
        if source.random() < 0.4:
            block = odd_value(source, 2)
            event["content_block"] = block
            if isinstance(block, dict):
                block["type"] = source.choice(["text", "thinking", "redacted_thinking", "tool_use", 7])
        if source.random() < 0.4:
            event["choices"] = [{"delta": odd_value(source, 3), "finish_reason": source.choice(ATOMS)}]
    return event


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("seed", range(20))
def test_no_stream_however_odd_gives_anything_but_an_outcome(api, seed):
    source = random.Random(f"{api}{seed}")
    outcomes = set()
    for _ in range(150):
        events = [odd_event(source) for _ in range(source.randrange(1, 8))]
        if source.random() < 0.5:
            events.append(delta("stop"))
            events += message()[1:]
        schema = {"outputSchema": {}} if source.random() < 0.2 else {}
        try:
            found = gathered(api, events, **schema)
        except (CallRefused, ProviderFailed) as error:
            outcomes.add(type(error))
        else:
            outcomes.add(dict)
            assert set(found) <= {"output", "finishReason", "usage", "evidence"}
    assert dict in outcomes
