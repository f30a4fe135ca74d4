"""A ModelCall as each API takes it, member by member (model-executor 13.3 and 13.6)."""

import hashlib
import json

import pytest

from services.model_executor.direct.anthropic_request import anthropic_request
from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.openai_request import openai_request
from services.model_executor.direct.prompt import read_call
from tests.model_executor.support import assistant, document, text, tool_result, user

OPENAI, ANTHROPIC = "openai-completions", "anthropic-messages"


def built(api, *prompt, base="http://h/v1", provider="", model="", tools=(), **members):
    """The request's body and the warnings."""
    config = read_config(
        f'default="p/m"\n[providers.p]\napi="{api}"\nbase_url="{base}"\n{provider}\n[providers.p.models.m]\n{model}',
        {},
    )
    call = json.loads(document(*(prompt or (user("hi"),)))) | {"tools": list(tools)} | members
    ready = read_call(json.dumps(call), "e", config.select)
    body = (openai_request if api == OPENAI else anthropic_request)(ready)
    return body, ready.warnings


def openai(*prompt, **members):
    return built(OPENAI, *prompt, **members)[0]


def anthropic(*prompt, **members):
    return built(ANTHROPIC, *prompt, **members)[0]


def instructions(*texts):
    return {"kind": "instructions", "role": "system", "content": [text(one) for one in texts]}


def reasoning(words, **pi):
    part = {"type": "reasoning", "text": words}
    if pi:
        part["providerMetadata"] = {"pi": {"provider": "p", "model": "m", **pi}}
    return part


def call_part(call_id="c1", name="t", args=None):
    return {"type": "tool-call", "id": call_id, "name": name, "args": {} if args is None else args}


def tool(name="t", **more):
    return {"name": name, "inputSchema": {"properties": {}}, **more}


# Stream and system


def test_the_stream_asks_for_usage_unless_the_server_can_t():
    assert openai()["stream_options"] == {"include_usage": True}
    body = openai(provider="compat={usage_in_stream=false}")
    assert "stream_options" not in body
    assert body["stream"] is True
    assert anthropic()["stream"] is True


def test_instructions_are_one_system_prompt_with_the_schema_s_line_last():
    prompt = (instructions("one", "two"), user("hi"), instructions("three"))
    schema = {"outputSchema": {"type": "object"}}
    first = openai(*prompt, **schema)["messages"][0]
    assert first["role"] == "system"
    lines = first["content"].split("\n")
    assert lines[:3] == ["one", "two", "three"]
    assert '{"type":"object"}' in lines[3]
    assert openai(*prompt, provider="compat={developer_role=true}")["messages"][0]["role"] == "developer"
    assert anthropic(*prompt, **schema)["system"] == [
        {"type": "text", "text": first["content"], "cache_control": {"type": "ephemeral"}}
    ]
    assert "system" not in anthropic()
    assert [message["role"] for message in openai()["messages"]] == ["user"]


# User, context, assistant


def test_user_texts():
    empty = {"kind": "message", "role": "user", "content": []}
    context = {"kind": "context", "role": "user", "content": [text("now")]}
    assert openai(user("one"), user("a", "b"), empty, context)["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "user", "content": "now"},
    ]
    [message] = anthropic(user("one"), user("a", " ", "b"), empty, context)["messages"]
    assert [block["text"] for block in message["content"]] == ["one", "a", "b", "now"]


def test_assistant_texts_are_one_string_and_what_is_empty_is_left_out():
    prompt = (user("q"), assistant(text("a"), text(" "), text("b")), assistant(text(" ")), user("r"))
    assert openai(*prompt)["messages"][1:] == [
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "r"},
    ]
    sent = anthropic(*prompt)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [text("a"), text("b")]


def test_tool_calls_of_the_assistant():
    prompt = (user("q"), assistant(call_part(args={"b": 1, "a": 2.0})), tool_result("x"))
    assert openai(*prompt)["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"b":1,"a":2}'}}
        ],
    }
    assert anthropic(*prompt)["messages"][1]["content"] == [
        {"type": "tool_use", "id": "c1", "name": "t", "input": {"b": 1, "a": 2.0}}
    ]


def test_reasoning_goes_back_only_as_the_same_model_signed_it():
    parts = (
        reasoning("unsigned"),
        reasoning("by field", signature="reasoning"),
        reasoning("more", signature="reasoning"),
        reasoning("signed", signature="sig"),
        reasoning("", signature="blob", redacted=True),
        reasoning("foreign", provider="q", signature="sig"),
        reasoning("odd", signature=7),
        text("said"),
    )
    message = openai(user("q"), assistant(*parts))["messages"][1]
    assert message == {"role": "assistant", "content": "said", "reasoning": "by field\nmore"}
    assert anthropic(user("q"), assistant(*parts))["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "signed", "signature": "sig"},
        {"type": "redacted_thinking", "data": "blob"},
        text("said"),
    ]


def test_a_message_of_another_model_keeps_texts_and_calls_only():
    for producer in ({"provider": "p", "model": "other"}, {"provider": "q", "model": "m"}):
        parts = (reasoning("mine", signature="sig"), text("said"), call_part())
        message = {**assistant(*parts), "producer": producer}
        sent = anthropic(user("q"), message, tool_result("x"))["messages"][1]["content"]
        assert [block["type"] for block in sent] == ["text", "tool_use"]


# Tool results


def test_tool_results():
    many = {**tool_result("one"), "content": [text("one"), text("two")]}
    none = {**tool_result("", "c2"), "content": [], "status": "failed"}
    prompt = (user("q"), assistant(call_part(), call_part("c2")), many, none)
    assert openai(*prompt)["messages"][2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "c2", "content": "(no tool output)"},
    ]
    [message] = anthropic(*prompt)["messages"][2:]
    first, second = message["content"]
    assert (first["content"], first["is_error"]) == ("one\ntwo", False)
    assert (second["content"], second["is_error"]) == ("(no tool output)", True)


@pytest.mark.parametrize("status", ["denied", "failed"])
def test_what_did_not_complete_is_an_error_result(status):
    result = {**tool_result("x"), "status": status}
    [message] = anthropic(user("q"), assistant(call_part()), result)["messages"][2:]
    assert message["content"][0]["is_error"] is True


@pytest.mark.parametrize("after", [[], [user("so?")], [assistant(text("then"))]])
def test_a_call_without_a_result_gets_one_wherever_the_conversation_goes_on(after):
    sent = openai(user("q"), assistant(call_part(), call_part("c2")), tool_result("x", "c2"), *after)[
        "messages"
    ]
    by_id = {message["tool_call_id"]: message["content"] for message in sent if message["role"] == "tool"}
    assert by_id["c2"] == "x"
    assert "No result" in by_id["c1"]


# Tools


def test_tools():
    tools = [tool("one", description="does"), tool("two")]
    assert openai(tools=tools)["tools"] == [
        {
            "type": "function",
            "function": {"name": "one", "description": "does", "parameters": {"properties": {}}},
        },
        {
            "type": "function",
            "function": {"name": "two", "description": "", "parameters": {"properties": {}}},
        },
    ]
    assert "tools" not in openai()
    assert anthropic(tools=tools)["tools"] == [
        {"name": "one", "description": "does", "input_schema": {"properties": {}, "type": "object"}},
        {
            "name": "two",
            "description": "",
            "input_schema": {"properties": {}, "type": "object"},
            "cache_control": {"type": "ephemeral"},
        },
    ]
    assert "tools" not in anthropic()
    for body in (openai(tools=tools), anthropic(tools=tools)):
        assert not {"tool_choice", "parallel_tool_calls"} & set(body)


def test_anthropic_declares_the_tools_of_the_history_when_none_is_offered():
    body = anthropic(user("q"), assistant(call_part(), call_part("c2"), call_part("c3", "u")))
    assert [(made["name"], made["input_schema"]) for made in body["tools"]] == [
        ("t", {"type": "object"}),
        ("u", {"type": "object"}),
    ]


# Controls and config


@pytest.mark.parametrize(
    ("base", "compat", "field"),
    [
        ("http://h/v1", "", "max_tokens"),
        ("https://api.openai.com/v1", "", "max_completion_tokens"),
        ("http://h/v1", 'max_tokens_field="max_completion_tokens"', "max_completion_tokens"),
        ("https://api.openai.com/v1", 'max_tokens_field="max_tokens"', "max_tokens"),
    ],
)
def test_the_output_limit_goes_where_the_server_takes_it(base, compat, field):
    model = {"controls": {"maxOutputTokens": 50, "temperature": 0}}
    config = read_config(
        f'default="p/m"\n[providers.p]\napi="{OPENAI}"\nbase_url="{base}"\ncompat={{{compat}}}', {}
    )
    call = read_call(json.dumps(json.loads(document(user("x"))) | {"model": model}), "e", config.select)
    body = openai_request(call)
    assert body[field] == 50
    assert len({"max_tokens", "max_completion_tokens"} & set(body)) == 1
    assert body["temperature"] == 0


def asked(api, controls=None, config=None, provider="", model=""):
    read = read_config(
        f'default="p/m"\n[providers.p]\napi="{api}"\n{provider}\n[providers.p.models.m]\n{model}', {}
    )
    call = json.loads(document(user("x"))) | {"model": {"controls": controls or {}, "config": config or {}}}
    ready = read_call(json.dumps(call), "e", read.select)
    return (openai_request if api == OPENAI else anthropic_request)(ready), ready.warnings


@pytest.mark.parametrize(("given", "sent"), [(None, 1000), (0, 1000), (10, 10), (5000, 1000)])
def test_anthropic_always_gets_a_limit_and_never_more_than_the_model_s(given, sent):
    controls = {} if given is None else {"maxOutputTokens": given}
    assert asked(ANTHROPIC, controls, model="max_output_tokens = 1000")[0]["max_tokens"] == sent


def test_what_is_the_adapter_s_own_can_t_be_set_by_config():
    own = ("model", "messages", "tools", "stream", "stream_options", "n", "max_tokens")
    own += ("max_completion_tokens", "response_format")
    body, warnings = asked(
        OPENAI, config={**dict.fromkeys(own, "odd"), "seed": 7, "parallel_tool_calls": False}
    )
    assert (body["seed"], body["parallel_tool_calls"]) == (7, False)
    assert "odd" not in body.values()
    assert warnings == [f"config.{name} is not passed on" for name in own]
    own = ("model", "messages", "system", "tools", "stream", "max_tokens")
    body, warnings = asked(ANTHROPIC, config={**dict.fromkeys(own, "odd"), "top_k": 3})
    assert body["top_k"] == 3
    assert "odd" not in body.values()
    assert warnings == [f"config.{name} is not passed on" for name in own]


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_the_reasoning_effort_in_each_mode(effort):
    assert asked(OPENAI, config={"reasoning_effort": effort})[0]["reasoning_effort"] == effort
    given = {"config": {"reasoning_effort": effort}, "controls": {"temperature": 1}}
    adaptive, warnings = asked(ANTHROPIC, provider='compat={thinking="adaptive"}', **given)
    budget, _ = asked(
        ANTHROPIC, provider='compat={thinking="budget"}', model="max_output_tokens=64000", **given
    )
    assert "reasoning_effort" not in {*adaptive, *budget}
    if effort == "none":
        assert not {"thinking", "output_config"} & set(adaptive)
        assert adaptive["temperature"] == 1
        return
    assert adaptive["thinking"] == {"type": "adaptive"}
    assert adaptive["output_config"] == {"effort": "low" if effort == "minimal" else effort}
    tokens = {"minimal": 1024, "low": 2048, "medium": 8192}.get(effort, 16384)
    assert budget["thinking"] == {"type": "enabled", "budget_tokens": tokens}
    assert "temperature" not in adaptive
    assert any("temperature" in warning for warning in warnings)


@pytest.mark.parametrize(("limit", "tokens"), [(3000, 1976), (2048, 1024), (2047, None)])
def test_a_thinking_budget_leaves_room_for_the_answer_or_is_off(limit, tokens):
    body, warnings = asked(
        ANTHROPIC,
        config={"reasoning_effort": "max"},
        provider='compat={thinking="budget"}',
        model=f"max_output_tokens={limit}",
    )
    if tokens is None:
        assert "thinking" not in body
        assert any("thinking is off" in warning for warning in warnings)
    else:
        assert body["thinking"]["budget_tokens"] == tokens


def test_a_schema_is_native_only_where_the_server_takes_it_and_no_tool_is_offered():
    schema = {"outputSchema": {"type": "object"}}
    native = {"provider": "compat={native_schema=true}", **schema}
    assert openai(**native)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False},
    }
    assert anthropic(**native)["output_config"] == {
        "format": {"type": "json_schema", "schema": {"type": "object"}}
    }
    for body in (openai(**schema), openai(tools=[tool()], **native)):
        assert "response_format" not in body
    for body in (anthropic(**schema), anthropic(tools=[tool()], **native)):
        assert "output_config" not in body


# Caches, ids, characters


@pytest.mark.parametrize(
    ("base", "compat", "key"),
    [
        ("https://api.openai.com/v1", "", True),
        ("http://h/v1", "", False),
        ("http://h/v1", "prompt_cache_key=true", True),
        ("https://api.openai.com/v1", "prompt_cache_key=false", False),
    ],
)
def test_the_prompt_cache_key(base, compat, key):
    for execution, sent in (("x", "x"), ("y" * 65, hashlib.sha256(b"y" * 65).hexdigest())):
        body = openai(base=base, provider=f"compat={{{compat}}}", executionId=execution)
        assert body.get("prompt_cache_key") == (sent if key else None)
        assert body.get("store") == (False if "openai.com" in base else None)


def test_a_host_that_only_begins_like_the_vendor_s_is_not_the_vendor():
    assert "store" not in openai(base="https://api.openai.com.example.org/v1")


def test_anthropic_caches_the_system_the_last_tool_and_the_last_user_block():
    body = anthropic(instructions("s"), user("a", "b"), tools=[tool("one"), tool("two")])
    marked = {"type": "ephemeral"}
    assert body["system"][0]["cache_control"] == marked
    assert [made.get("cache_control") for made in body["tools"]] == [None, marked]
    assert [block.get("cache_control") for block in body["messages"][0]["content"]] == [None, marked]


@pytest.mark.parametrize(
    ("api", "given", "sent"),
    [
        (OPENAI, "c:" + "x" * 38, "c:" + "x" * 38),
        (OPENAI, "c:" + "x" * 39, None),
        (ANTHROPIC, "c1-_", "c1-_"),
        (ANTHROPIC, "c:1", "c_1"),
        (ANTHROPIC, "x" * 64, "x" * 64),
        (ANTHROPIC, "x" * 65, None),
    ],
)
def test_ids_are_rewritten_only_where_they_would_be_refused(api, given, sent):
    body, _ = built(api, user("q"), assistant(call_part(given)), tool_result("x", given))
    if api == OPENAI:
        used, limit = body["messages"][1]["tool_calls"][0]["id"], 40
        assert body["messages"][2]["tool_call_id"] == used
    else:
        used, limit = body["messages"][1]["content"][0]["id"], 64
        assert body["messages"][2]["content"][0]["tool_use_id"] == used
    if sent is not None:
        assert used == sent
    else:
        assert len(used) == limit
        assert used.endswith("_" + hashlib.sha256(given.encode()).hexdigest()[:8])


def test_lone_surrogates_are_replaced():
    call = document(user("x")).replace('"x"', '"a\\ud800b"')
    config = read_config(f'default="p/m"\n[providers.p]\napi="{OPENAI}"', {})
    body = openai_request(read_call(call, "e", config.select))
    json.dumps(body, ensure_ascii=False).encode()
    assert "a\ufffdb" in json.dumps(body, ensure_ascii=False)
