"""The direct route against providers over sockets, in both wire formats (model-executor 13)."""

import asyncio
import json
import time

import pytest

from services.common.calls import WorkKey
from services.model_executor.direct.repair import read_model_json
from services.model_executor.executor import CallAborted
from tests.common.support import BOUND_S, until
from tests.doubles.providers import (
    anthropic,
    anthropic_text,
    cut,
    delta,
    held,
    openai_text,
    status,
    stream,
)
from tests.model_executor.direct import HI, KEY, messages, of, openai
from tests.model_executor.support import CANCEL, Ticker, assistant, document, text, tool_result, user

BOTH = pytest.mark.parametrize("made", [openai, messages])


def plain(made, words="hello", **more):
    return openai_text(words, **more) if made is openai else anthropic(anthropic_text(words), **more)


@pytest.mark.spec("model-executor:15.39")
async def test_an_openai_answer_becomes_a_candidate():
    price = "price = {input=1, output=2, cache_read=0.5}"
    async with openai(openai_text(headers={"x-request-id": "r1"}), model=price) as it:
        candidate = await it.ask()
        assert candidate == {
            "output": [{"type": "text", "text": "hello"}],
            "finishReason": "stop",
            "usage": {
                "inputTokens": 60,
                "outputTokens": 10,
                "totalTokens": 110,
                "cachedTokens": 40,
                "costUsd": 0.0001,
            },
            "evidence": {
                "resolvedModel": "m-1",
                "requestId": "r1",
                "extras": {
                    "producer": {"provider": "p", "api": "openai-completions", "model": "m"},
                    "contextWindow": 128000,
                    "maxOutputTokens": 16384,
                },
            },
        }
        [request] = it.double.requests
        assert request.target == "/v1/chat/completions"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert it.double.bodies[0] == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def test_an_anthropic_answer_becomes_a_candidate():
    thinking = (
        {"type": "thinking", "thinking": ""},
        [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "sig"}],
    )
    hidden = ({"type": "redacted_thinking", "data": "xyz"}, [])
    tool = (
        {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"a"', ":1}")],
    )
    async with messages(anthropic(thinking, hidden, anthropic_text(), tool, stop="tool_use")) as it:
        candidate = await it.ask()
        pi = {"provider": "p", "model": "m"}
        assert candidate["output"] == [
            {"type": "reasoning", "text": "hm", "providerMetadata": {"pi": {**pi, "signature": "sig"}}},
            {
                "type": "reasoning",
                "text": "",
                "providerMetadata": {"pi": {**pi, "signature": "xyz", "redacted": True}},
            },
            {"type": "text", "text": "hello"},
            {"type": "tool-call", "id": "t1", "name": "look", "args": {"a": 1}},
        ]
        assert candidate["finishReason"] == "tool-calls"
        assert candidate["usage"]["totalTokens"] == 110
        assert candidate["usage"]["inputTokens"] == 60
        assert candidate["evidence"]["extras"]["producer"]["api"] == "anthropic-messages"
        [body] = it.double.bodies
        assert body["max_tokens"] == 16384
        assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}


@BOTH
async def test_a_provider_without_a_key_setting_gets_no_credential_and_one_with_an_unset_key_no_request(made):
    async with made(plain(made), key=" ") as it:
        assert of(await it.ask()) == ("auth", False)
        assert it.double.requests == []


@pytest.mark.parametrize("api", ["openai-completions", "anthropic-messages"])
async def test_a_local_server_needs_no_key(api, monkeypatch):
    from services.model_executor.direct.config_file import read_config
    from services.model_executor.direct.route import DirectRoute
    from services.model_executor.executor import ModelExecutor
    from tests.doubles.http import serving
    from tests.doubles.providers import ProviderDouble
    from tests.model_executor.support import call_of

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", f"x-leak: {KEY}")
    reply = openai_text() if api.startswith("openai") else anthropic(anthropic_text())
    async with serving(ProviderDouble(replies=[reply])) as double, asyncio.timeout(BOUND_S):
        base = double.origin + ("/v1" if api.startswith("openai") else "")
        text = f'default="p/a/b"\n[providers.p]\napi="{api}"\nbase_url="{base}"\nheaders={{"X-Own"="yes"}}'
        executor = ModelExecutor(DirectRoute(read_config(text, {})))
        candidate = json.loads(await executor.call(call_of(HI)))
        await executor.close()
        assert candidate["output"][0]["text"] == "hello"
        headers = double.requests[0].headers
        assert "authorization" not in headers
        assert "x-api-key" not in headers
        assert headers["x-own"] == "yes"
        assert KEY not in str(headers)
        assert double.bodies[0]["model"] == "a/b"


@pytest.mark.spec("model-executor:15.37")
async def test_interleaved_tool_calls_become_blocks_in_index_order():
    def piece(index, arguments, **more):
        return {"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}

    events = [
        delta(tool_calls=[piece(1, '{"b":', id="c2", function={"name": "two"})]),
        delta(tool_calls=[piece(0, "", id="c1", function={"name": "one"})]),
        delta(tool_calls=[piece(0, '{"a"'), piece(1, "2}")]),
        delta(tool_calls=[piece(0, ":1}")]),
        delta("tool_calls"),
        "[DONE]",
    ]
    async with openai(stream(events, byte_by_byte=True)) as it:
        candidate = await it.ask()
        assert candidate["output"] == [
            {"type": "tool-call", "id": "c1", "name": "one", "args": {"a": 1}},
            {"type": "tool-call", "id": "c2", "name": "two", "args": {"b": 2}},
        ]
        assert candidate["finishReason"] == "tool-calls"
        assert "usage" not in candidate


@pytest.mark.spec("model-executor:15.38")
@pytest.mark.parametrize(
    ("arguments", "args", "raw"),
    [
        ('{"a":', {"a": None}, None),
        ('{"a":"x', {"a": "x"}, None),
        ('{"a":[1,2', {"a": [1, 2]}, None),
        ('{"a":1,}', {"a": 1}, None),
        ("", {}, None),
        ("[1]", {}, "[1]"),
        ("nonsense", {}, "nonsense"),
        ({"a": 1.0}, {"a": 1}, None),
        ({}, {}, None),
    ],
)
async def test_arguments_that_were_cut_off_are_repaired_or_kept_raw(arguments, args, raw):
    call = {"index": 0, "function": {"name": "t", "arguments": arguments}}
    async with openai(stream([delta(tool_calls=[call]), delta("length")])) as it:
        candidate = await it.ask()
        [block] = candidate["output"]
        assert block["args"] == args
        assert block.get("raw") == raw
        assert block["id"].startswith("call_")
        assert candidate["finishReason"] == "length"


def test_a_long_text_that_was_cut_off_is_repaired_at_once():
    text = '{"code":"' + '\\"x\\"\\n' * 20_000
    began = time.process_time()
    assert read_model_json(text) == {"code": '"x"\n' * 20_000}
    # It took minutes when every quote was tried as the beginning of a string.
    assert time.process_time() - began < 10


@pytest.mark.spec("model-executor:15.40")
async def test_results_and_context_after_an_assistant_message_are_one_user_message_for_anthropic():
    calls = [{"type": "tool-call", "id": f"c{n}", "name": "t", "args": {}} for n in (1, 2)]
    context = {"kind": "context", "role": "user", "content": [text("now")]}
    prompt = (user("go"), assistant(*calls), tool_result("one", "c1"), tool_result("two", "c2"), context)
    async with messages(anthropic(anthropic_text())) as it:
        await it.ask(document(*prompt))
        sent = it.double.bodies[0]["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "user"]
        assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
        assert it.double.bodies[0]["tools"][0]["name"] == "t"


@pytest.mark.spec("model-executor:15.41")
@BOTH
async def test_a_tool_call_without_a_result_gets_an_error_result(made):
    prompt = (user("go"), assistant({"type": "tool-call", "id": "c1", "name": "t", "args": {}}), user("so?"))
    async with made(plain(made)) as it:
        await it.ask(document(*prompt))
        sent = it.double.bodies[0]["messages"]
        if made is openai:
            assert sent[2]["role"] == "tool"
            assert "No result" in sent[2]["content"]
        else:
            assert sent[2]["content"][0]["is_error"] is True
            assert sent[2]["content"][0]["tool_use_id"] == "c1"


@pytest.mark.spec("model-executor:15.45")
@BOTH
async def test_reasoning_of_another_model_is_left_out(made):
    def reasoning(model, signature):
        metadata = {"pi": {"provider": "p", "model": model, "signature": signature}}
        return {"type": "reasoning", "text": "why", "providerMetadata": metadata}

    own = "reasoning_content" if made is openai else "sig"
    tool = {"type": "tool-call", "id": "c1", "name": "t", "args": {}}
    for producer, model, kept in (("m", "m", True), ("old", "old", False), (None, "old", False)):
        message = assistant(reasoning(model, own), text("said"), tool)
        if producer is not None:
            message["producer"] = {"provider": "p", "model": producer}
        async with made(plain(made)) as it:
            await it.ask(document(user("go"), message, tool_result("x")))
            sent = it.double.bodies[0]["messages"][1]
            assert ("why" in json.dumps(sent)) is kept
            assert "said" in json.dumps(sent)
            assert "c1" in json.dumps(sent)


@pytest.mark.spec("model-executor:15.43")
@BOTH
@pytest.mark.parametrize(
    ("answer", "value"), [('```json\n{"a":1}\n```', {"a": 1}), ('{"a":1}', {"a": 1}), ("prose", None)]
)
async def test_a_structured_answer_is_read_out_of_its_fence(made, answer, value):
    call = json.loads(HI) | {"outputSchema": {"type": "object"}}
    async with made(plain(made, answer)) as it:
        outcome = await it.ask(json.dumps(call))
        if value is None:
            assert of(outcome) == ("invalid_output", False)
        else:
            assert outcome["output"] == [{"type": "json", "value": value}]
        assert '{"type":"object"}' in json.dumps(it.double.bodies[0]).replace('\\"', '"')


@pytest.mark.spec("model-executor:15.44")
async def test_a_structured_answer_with_a_tool_call_is_left_as_it_is():
    call = json.loads(HI) | {"outputSchema": {"type": "object"}}
    tool = {"index": 0, "id": "c", "function": {"name": "t", "arguments": "{}"}}
    async with openai(stream([delta(content="prose"), delta("stop", tool_calls=[tool])])) as it:
        outcome = await it.ask(json.dumps(call))
        assert [block["type"] for block in outcome["output"]] == ["text", "tool-call"]
        assert outcome["finishReason"] == "tool-calls"


@pytest.mark.spec("model-executor:15.34")
@BOTH
async def test_a_call_is_retried_after_the_wait_that_the_provider_named(made):
    slow = status(429, {"error": {"message": "slow down"}}, {"retry-after-ms": "1"})
    async with made(slow, slow, plain(made)) as it:
        assert (await it.ask())["output"][0]["text"] == "hello"
        assert len(it.double.requests) == 3
        assert it.waits == [0.001, 0.001]


@pytest.mark.spec("model-executor:15.35")
async def test_a_wait_that_is_too_long_ends_the_call_and_is_passed_on():
    async with openai(status(429, {"error": {"message": "slow"}}, {"retry-after": "3600"})) as it:
        outcome = await it.ask()
        assert of(outcome) == ("rate_limited", True)
        assert outcome["retryAfterMs"] == 3_600_000
        assert len(it.double.requests) == 1


@pytest.mark.spec("model-executor:15.36")
@BOTH
async def test_a_stream_that_stalls_is_retried_then_a_timeout(made):
    first = delta(content="he") if made is openai else {"type": "ping"}
    stalled = stream([first], named=made is messages, end="stall")
    async with made(stalled, retry="attempts = 2\nidle_timeout_ms = 150") as it:
        assert of(await it.ask()) == ("timeout", True)
        assert len(it.double.requests) == 2


@pytest.mark.spec("model-executor:15.42")
@pytest.mark.parametrize(
    ("type_", "code", "retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("authentication_error", "auth", False),
        ("rate_limit_error", "rate_limited", True),
        ("api_error", "transient", True),
        ("billing_error", "rate_limited", False),
    ],
)
@BOTH
async def test_an_error_event_inside_a_200_is_classified_by_its_type(made, type_, code, retryable):
    error = {"type": "error", "error": {"type": type_, "message": "busy"}}
    async with made(stream([error], named=made is messages), retry="attempts = 1") as it:
        assert of(await it.ask()) == (code, retryable)


STATUSES = [
    (400, {"message": "x", "code": "context_length_exceeded"}, "context_overflow", False),
    (413, {"message": "x", "type": "request_too_large"}, "context_overflow", False),
    (422, {"message": "maximum context length is 8192 tokens"}, "context_overflow", False),
    (413, None, "context_overflow", False),
    (400, {"message": "x", "code": "content_policy_violation"}, "content_policy", False),
    (403, {"message": "flagged by moderation"}, "content_policy", False),
    (401, {"message": "x"}, "auth", False),
    (403, {"message": "x"}, "auth", False),
    (402, {"message": "x"}, "rate_limited", False),
    (429, {"message": "x", "code": "insufficient_quota"}, "rate_limited", False),
    (429, {"message": "Rate limit reached … billing"}, "rate_limited", False),
    (429, {"message": "x"}, "rate_limited", True),
    (408, {"message": "x"}, "timeout", True),
    (504, {"message": "x"}, "timeout", True),
    (524, {"message": "x"}, "timeout", True),
    (503, {"message": "x"}, "overloaded", True),
    (529, {"message": "x"}, "overloaded", True),
    (409, {"message": "x"}, "transient", True),
    (425, {"message": "x"}, "transient", True),
    (500, {"message": "x"}, "transient", True),
    (502, {"message": "x"}, "transient", True),
    (400, {"message": "x"}, "invalid_request", False),
    (404, {"message": "model not found"}, "invalid_request", False),
    (405, {"message": "x"}, "invalid_request", False),
    (422, {"message": "x"}, "invalid_request", False),
]


@pytest.mark.parametrize(("code", "error", "expected", "retryable"), STATUSES)
@BOTH
async def test_every_status_has_its_code(made, code, error, expected, retryable):
    body = b"" if error is None else {"error": error}
    async with made(status(code, body), retry="attempts = 1") as it:
        assert of(await it.ask()) == (expected, retryable)
        assert len(it.double.requests) == 1


@BOTH
async def test_only_what_may_help_is_tried_again(made):
    for code, requests in ((401, 1), (500, 3)):
        async with made(status(code, {"error": {"message": "x"}})) as it:
            await it.ask()
            assert len(it.double.requests) == requests
    for asked, code, requests in (("false", 500, 1), ("true", 400, 3)):
        async with made(status(code, {"error": {"message": "x"}}, {"x-should-retry": asked})) as it:
            await it.ask()
            assert len(it.double.requests) == requests


@BOTH
async def test_lost_and_odd_answers_are_transient_and_retried(made):
    half = (
        stream([delta(content="he")], end="cut")
        if made is openai
        else stream([{"type": "message_start", "message": {}}], named=True, end="cut")
    )
    html = status(200, b"<html>hi</html>", {"content-type": "text/html"})
    async with made(cut(), half, html, plain(made), retry="attempts = 4") as it:
        assert (await it.ask())["output"][0]["text"] == "hello"
        assert len(it.double.requests) == 4


@BOTH
async def test_a_redirect_is_not_followed(made):
    async with made(status(302, b"", {"location": "/v1/messages"}), retry="attempts = 1") as it:
        assert (await it.ask())["kind"] == "failed"
        assert len(it.double.requests) == 1


@BOTH
async def test_a_zipped_stream_is_read(made):
    async with made(plain(made, zipped=True)) as it:
        assert (await it.ask())["output"][0]["text"] == "hello"


@pytest.mark.parametrize(
    ("finish", "content", "expected"),
    [
        ("stop", "x", "stop"),
        ("end", "x", "stop"),
        ("length", "x", "length"),
        ("odd", "x", "other"),
        ("function_call", "x", "tool-calls"),
        ("content_filter", "x", ("content_policy", False)),
        ("network_error", "x", ("transient", True)),
        ("odd", "", ("transient", True)),
        (None, "x", ("transient", True)),
    ],
)
async def test_openai_stop_reasons(finish, content, expected):
    async with openai(stream([delta(content=content), delta(finish)]), retry="attempts = 1") as it:
        outcome = await it.ask()
        assert (outcome["finishReason"] if isinstance(expected, str) else of(outcome)) == expected


async def test_openai_oddities():
    async with openai(stream([delta(content="x")]), more="compat = {finish_reason = false}") as it:
        assert (await it.ask())["finishReason"] == "stop"
    async with openai(stream([delta(refusal="no"), delta("stop")])) as it:
        assert of(await it.ask()) == ("content_policy", False)
    full = delta("length", usage={"prompt_tokens": 995})
    async with openai(stream([full]), model="context_window = 1000") as it:
        assert of(await it.ask()) == ("context_overflow", False)
    reasoned = [delta(reasoning_content="why"), delta(content="x"), delta("stop")]
    async with openai(stream(reasoned)) as it:
        assert (await it.ask())["output"][0]["providerMetadata"] == {
            "pi": {"provider": "p", "model": "m", "signature": "reasoning_content"},
            "replay": "turn",
        }
    last = {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3}}]}
    async with openai(stream([delta(content="x"), last])) as it:
        assert (await it.ask())["usage"]["inputTokens"] == 3


@pytest.mark.parametrize(
    ("stop", "content", "expected"),
    [
        ("end_turn", True, "stop"),
        ("stop_sequence", True, "stop"),
        ("pause_turn", True, "stop"),
        ("tool_use", True, "tool-calls"),
        ("max_tokens", True, "length"),
        ("model_context_window_exceeded", True, "length"),
        ("model_context_window_exceeded", False, ("context_overflow", False)),
        ("refusal", True, ("content_policy", False)),
        ("sensitive", False, ("content_policy", False)),
        ("odd", True, "other"),
        ("odd", False, ("transient", True)),
        (None, True, ("transient", True)),
    ],
)
async def test_anthropic_stop_reasons(stop, content, expected):
    blocks = [anthropic_text()] if content else []
    async with messages(anthropic(*blocks, stop=stop), retry="attempts = 1") as it:
        outcome = await it.ask()
        assert (outcome["finishReason"] if isinstance(expected, str) else of(outcome)) == expected


@pytest.mark.spec("model-executor:15.48")
@BOTH
@pytest.mark.parametrize("code", [400, 401, 500])
async def test_a_key_in_a_provider_s_error_reaches_nobody(made, code, capsys):
    error = {"error": {"message": f"Incorrect key {KEY}! " + "x" * 3000}}
    async with made(status(code, error), retry="attempts = 2") as it:
        outcome = await it.ask()
        assert KEY not in json.dumps(outcome)
        assert "[redacted]" in outcome["message"]
        assert len(outcome["message"]) == 2000
    out = capsys.readouterr()
    assert KEY not in out.out + out.err


@pytest.mark.spec("model-executor:15.23", "model-executor:15.25")
async def test_one_effect_makes_one_request_and_another_call_or_a_lower_epoch_is_refused():
    go = asyncio.Event()
    async with openai(held(go, openai_text())) as it, asyncio.timeout(BOUND_S):
        calls = [asyncio.ensure_future(it.ask(epoch=2)) for _ in range(2)]
        await it.double.arrived.wait()
        other = await it.ask(document(user("other")), epoch=2)
        assert "changed under the same effect id" in other["message"]
        assert (await it.ask(epoch=1))["message"].startswith("stale run:")
        go.set()
        first, second = await asyncio.gather(*calls)
        assert first == second
        assert len(it.double.requests) == 1


@pytest.mark.spec("model-executor:15.24")
async def test_an_outcome_is_kept_for_less_than_30_minutes():
    ticker = Ticker()
    async with openai(openai_text(), clock=ticker.clock) as it:
        await it.ask()
        ticker.now = 30 * 60 - 1
        await it.ask()
        assert len(it.double.requests) == 1
        ticker.now = 30 * 60
        await it.ask()
        assert len(it.double.requests) == 2


@BOTH
async def test_a_cancel_closes_the_provider_s_connection_and_a_lost_caller_does_not(made):
    stalled = stream([{"type": "ping"}], named=True, end="stall")
    async with made(stalled) as it, asyncio.timeout(BOUND_S):
        lost = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        lost.cancel()
        joined = asyncio.ensure_future(it.ask())
        await until(lambda: it.executor.work.counts.get("model.joined"))
        await it.executor.stop(WorkKey("t", "s", "e"), CANCEL, None)
        with pytest.raises(CallAborted):
            await joined
        await until(lambda: not it.executor.work.in_flight())
        assert len(it.double.requests) == 1


@BOTH
async def test_long_ids_and_odd_names_are_fitted_and_mapped_back(made):
    odd_id, odd_name = "c:" + "x" * 80, "näme.with.dots"
    prompt = (user("go"), assistant({"type": "tool-call", "id": odd_id, "name": odd_name, "args": {}}))
    call = document(*prompt, tool_result("x", odd_id), tools=(odd_name,))
    async with made(plain(made)) as it:
        await it.ask(call)
        sent = it.double.bodies[0]
        if made is openai:
            alias, given = sent["tools"][0]["function"]["name"], sent["messages"][2]["tool_call_id"]
            used = sent["messages"][1]["tool_calls"][0]
            assert (used["id"], used["function"]["name"]) == (given, alias)
        else:
            alias, given = sent["tools"][0]["name"], sent["messages"][2]["content"][0]["tool_use_id"]
            used = sent["messages"][1]["content"][0]
            assert (used["id"], used["name"]) == (given, alias)
        assert len(given) <= (40 if made is openai else 64)
        assert alias.isascii()
        tool = {"index": 0, "id": "c", "function": {"name": alias, "arguments": "{}"}}
        if made is openai:
            it.double.replies.append(stream([delta("tool_calls", tool_calls=[tool])]))
            assert (await it.ask(call, effect_id="e2"))["output"][0]["name"] == odd_name


@BOTH
@pytest.mark.parametrize("odd", ["", "[]", "{}", '{"prompt":[1],"tools":[]}', '{"prompt":[],"tools":[1]}'])
async def test_a_document_that_is_no_call_is_an_invalid_request(made, odd):
    async with made(plain(made)) as it:
        assert of(await it.ask(odd)) == ("invalid_request", False)


async def test_reasoning_effort_and_reserved_config():
    config = {"reasoning_effort": "low", "n": 3, "top_p": 0.5}
    call = json.loads(HI) | {
        "model": {"controls": {"temperature": 1, "maxOutputTokens": 9000}, "config": config}
    }
    async with openai(openai_text()) as it:
        outcome = await it.ask(json.dumps(call))
        [body] = it.double.bodies
        assert (body["reasoning_effort"], body["top_p"], body["temperature"]) == ("low", 0.5, 1)
        assert body["max_tokens"] == 9000
        assert "n" not in body
        assert outcome["evidence"]["warnings"] == ["config.n is not passed on"]
    async with messages(anthropic(anthropic_text()), more='compat = {thinking = "budget"}') as it:
        await it.ask(json.dumps(call))
        [body] = it.double.bodies
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
        assert "temperature" not in body
    async with messages(anthropic(anthropic_text()), more='compat = {thinking = "adaptive"}') as it:
        await it.ask(json.dumps(call))
        assert it.double.bodies[0]["output_config"] == {"effort": "low"}
