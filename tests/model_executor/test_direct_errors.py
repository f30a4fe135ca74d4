"""How direct calls fail: every condition has its code, every wait its form (model-executor 13.5)."""

import asyncio
import contextlib
import email.utils
import json
import socket
import time
from types import SimpleNamespace

import pytest

from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.route import DirectRoute
from services.model_executor.executor import ModelExecutor
from tests.common.support import BOUND_S, until
from tests.doubles.http import serving
from tests.doubles.providers import (
    SSE,
    ProviderDouble,
    anthropic,
    anthropic_text,
    chunk,
    delta,
    openai_text,
    status,
    stream,
)
from tests.model_executor.direct import HI, KEY, config_text, messages, of, openai
from tests.model_executor.support import call_of

BOTH = pytest.mark.parametrize("made", [openai, messages])
ONCE = "attempts = 1"


def plain(made):
    return openai_text() if made is openai else anthropic(anthropic_text())


def error(message="x", **fields):
    return {"error": {"message": message, **fields}}


@BOTH
@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (400, {"type": "request_too_large"}, ("context_overflow", False)),
        (422, {"code": "context_length_exceeded"}, ("context_overflow", False)),
        (400, {"message": "prompt is too long: 9 > 8"}, ("context_overflow", False)),
        (400, {"code": "content_filter"}, ("content_policy", False)),
        (403, {"code": "content_policy_violation"}, ("content_policy", False)),
        (401, {"type": "authentication_error"}, ("auth", False)),
        (403, {"type": "permission_error"}, ("auth", False)),
        (402, {"type": "billing_error"}, ("rate_limited", False)),
        (429, {"type": "insufficient_quota"}, ("rate_limited", False)),
        (429, {"message": "quota exceeded for this month"}, ("rate_limited", False)),
        (429, {"type": "rate_limit_error"}, ("rate_limited", True)),
        (408, {"type": "timeout_error"}, ("timeout", True)),
        (529, {"type": "overloaded_error"}, ("overloaded", True)),
        (500, {"type": "api_error"}, ("transient", True)),
        (599, {}, ("transient", True)),
        (404, {"type": "not_found_error"}, ("invalid_request", False)),
        (400, {"type": "invalid_request_error"}, ("invalid_request", False)),
        (418, {}, ("invalid_request", False)),
    ],
)
async def test_fields_come_before_the_status_and_the_status_before_the_text(made, code, fields, expected):
    async with made(status(code, error(**fields)), retry=ONCE) as it:
        assert of(await it.ask()) == expected


@BOTH
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "overloaded_error"}, ("overloaded", True)),
        ({"type": "rate_limit_error"}, ("rate_limited", True)),
        ({"type": "rate_limit_error", "message": "billing hard limit"}, ("rate_limited", False)),
        ({"code": "context_length_exceeded"}, ("context_overflow", False)),
        ({"message": "prompt is too long"}, ("context_overflow", False)),
        ({"message": "Overloaded"}, ("overloaded", True)),
        ({"message": "what is this"}, ("transient", True)),
        ({"code": 502, "message": "Provider returned error"}, ("transient", True)),
        ({}, ("transient", True)),
    ],
)
async def test_an_error_event_after_part_of_the_answer(made, event, expected):
    part = delta(content="he") if made is openai else {"type": "ping"}
    events = [part, {"type": "error", "error": {"message": "", **event}}]
    async with made(stream(events, named=made is messages), retry=ONCE) as it:
        assert of(await it.ask()) == expected


@BOTH
@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"retry-after-ms": "7"}, 7),
        ({"retry-after-ms": "7.9"}, 7),
        ({"retry-after-ms": "7", "retry-after": "3"}, 7),
        ({"retry-after": "3"}, 3000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after": " 2 "}, 2000),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2000),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00"}, 0),
        ({"retry-after": "Sat, 01 Jan 0001 00:00:00"}, 0),
        ({"retry-after": "Sat, 01 Jan 0001 00:00:00 +2359"}, 0),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "3, 4"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1e3"}, None),
        ({}, None),
    ],
)
async def test_every_form_of_a_server_s_wait(made, headers, wait_ms):
    async with made(status(429, error(), headers), plain(made)) as it:
        assert (await it.ask())["output"]
        [waited] = it.waits
        if wait_ms is None:
            assert 0 <= waited <= 0.001  # our own delay
        else:
            assert waited == wait_ms / 1000
    async with made(status(429, error(), headers), retry=ONCE) as it:
        assert (await it.ask()).get("retryAfterMs") == wait_ms


async def test_a_wait_until_a_date():
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    async with openai(status(503, error(), {"retry-after": date}), openai_text()) as it:
        assert (await it.ask())["output"]
        assert 25 < it.waits[0] <= 30


@pytest.mark.parametrize(("wait", "requests"), [("60", 2), ("60.001", 1), ("3600", 1)])
async def test_only_waits_up_to_the_limit_are_waited_for(wait, requests):
    async with openai(status(429, error(), {"retry-after": wait}), openai_text()) as it:
        outcome = await it.ask()
        assert len(it.double.requests) == requests
        assert ("output" in outcome) is (requests == 2)


async def test_our_own_delays_double_less_up_to_a_quarter():
    async with openai(status(500, error()), retry="attempts = 4\n") as it:
        it.executor.route._attempts = type(it.executor.route._attempts)(
            type(it.executor.route._config.retry)(attempts=4, base_delay_ms=1000),
            it.executor.route._attempts.sleep,
        )
        await it.ask()
        assert len(it.waits) == 3
        for number, waited in enumerate(it.waits):
            assert 0.75 * 2**number <= waited <= 2**number


async def test_a_wait_ends_with_a_cancel():
    from services.common.calls import WorkKey
    from services.model_executor.executor import CallAborted
    from tests.model_executor.support import CANCEL

    async with serving(ProviderDouble(replies=[status(500, error(), {"retry-after": "50"})])) as provider:
        config = read_config(config_text(provider.origin, "openai-completions"), {"KEY": KEY})
        executor = ModelExecutor(DirectRoute(config))
        async with asyncio.timeout(BOUND_S):
            running = asyncio.ensure_future(executor.call(call_of(HI)))
            await until(lambda: provider.answered)
            executor.cancel(WorkKey("t", "s", "e"), CANCEL)
            with pytest.raises(CallAborted):
                await running
        await executor.close()
        assert len(provider.requests) == 1


# On the way


async def asked(base, api="openai-completions"):
    text = (
        f'default="p/m"\n[providers.p]\napi="{api}"\nbase_url="{base}"\n[retry]\nattempts=2\nbase_delay_ms=1'
    )
    executor = ModelExecutor(DirectRoute(read_config(text, {})))
    try:
        async with asyncio.timeout(BOUND_S):
            return json.loads(await executor.call(call_of(HI)))
    finally:
        await executor.close()


@pytest.mark.parametrize("api", ["openai-completions", "anthropic-messages"])
async def test_a_server_that_is_not_there_is_named_with_what_to_do(api):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outcome = await asked(f"http://user:hidden@127.0.0.1:{port}/v1", api)
    assert of(outcome) == ("transient", True)
    assert f"can't be reached at http://127.0.0.1:{port}/v1" in outcome["message"]
    assert "start its server, or correct the address" in outcome["message"]
    assert "hidden" not in outcome["message"]


async def test_a_name_that_dns_does_not_know_and_a_server_without_tls_are_transient():
    outcome = await asked("http://no-such-host.invalid/v1")
    assert of(outcome) == ("transient", True)
    assert "no-such-host.invalid" in outcome["message"]
    async with serving(ProviderDouble(replies=[openai_text()])) as provider:
        outcome = await asked(provider.origin.replace("http:", "https:") + "/v1")
        assert of(outcome) == ("transient", True)
        assert provider.bodies == []


@BOTH
async def test_a_request_has_a_bound_even_while_events_come(made):
    async def drip(wire):
        await wire.head(200, SSE)
        while True:
            await chunk(wire, b'event: ping\ndata: {"type": "ping"}\n\n')
            await asyncio.sleep(0.02)

    retry = "attempts = 1\nrequest_timeout_ms = 200\nidle_timeout_ms = 5000"
    async with made(drip, retry=retry) as it:
        assert of(await it.ask()) == ("timeout", True)


@BOTH
async def test_comments_that_keep_a_connection_open_are_no_events(made):
    async def drip(wire):
        await wire.head(200, SSE)
        while True:
            await chunk(wire, b": still working\n\n")
            await asyncio.sleep(0.02)

    async with made(drip, retry="attempts = 1\nidle_timeout_ms = 200") as it:
        outcome = await it.ask()
        assert of(outcome) == ("timeout", True)
        assert "sent nothing for 0.2 s" in outcome["message"]


# Odd answers


@BOTH
@pytest.mark.parametrize(
    "reply",
    [
        status(200, b"<html>hi</html>", {"content-type": "text/html"}),
        status(200, {"id": "x"}),
        status(200, b""),
        status(204, b""),
        stream(["not json"]),
        stream(["[" * 100_000]),
        stream(["{" + '"a":{' * 50_000]),
        stream(['"text"', "[1]", "7", "null"]),
    ],
    ids=["html", "whole json", "nothing", "204", "not json", "deep list", "deep object", "no objects"],
)
async def test_a_200_that_is_no_stream_of_ours_is_transient(made, reply):
    async with made(reply, retry=ONCE) as it:
        outcome = await it.ask()
        assert of(outcome) == ("transient", True)
        assert "html" not in outcome["message"]


@BOTH
async def test_bytes_that_are_no_utf_8_are_transient(made):
    async def reply(wire):
        await wire.head(200, SSE)
        await chunk(wire, b'event: x\ndata: {"a":"\xff\xfe"}\n\n')
        await wire.send(b"0\r\n\r\n")

    async with made(reply, retry=ONCE) as it:
        assert of(await it.ask()) == ("transient", True)


@BOTH
async def test_a_damaged_zip_and_broken_chunks_are_transient(made):
    async def zipped(wire):
        await wire.head(200, {**SSE, "content-encoding": "gzip"})
        await chunk(wire, b"no gzip at all")
        await wire.send(b"0\r\n\r\n")

    async def broken(wire):
        await wire.head(200, SSE)
        await wire.send(b"zz\r\nhello\r\n")
        wire.close()

    async def headless(wire):
        await wire.send(b"SSH-2.0-OpenSSH\r\n")
        wire.close()

    for reply in (zipped, broken, headless):
        async with made(reply, retry=ONCE) as it:
            assert of(await it.ask()) == ("transient", True), reply.__name__


@BOTH
async def test_an_answer_without_end_is_stopped_at_its_limit(made, monkeypatch):
    monkeypatch.setattr("services.model_executor.direct.vendors.MAX_ANSWER_BYTES", 100_000)

    async def endless(wire):
        await wire.head(200, SSE)
        while True:
            await chunk(wire, b"data: " + b"x" * 5000)

    async with made(endless) as it:
        outcome = await it.ask()
        assert of(outcome) == ("transient", False)
        assert "over 100000 bytes" in outcome["message"]
        assert len(it.double.requests) == 1

    async def bomb(wire):
        import gzip

        await wire.head(200, {**SSE, "content-encoding": "gzip"})
        await chunk(wire, gzip.compress(b"data: " + b"x" * 50_000_000))
        await wire.send(b"0\r\n\r\n")

    async with made(bomb) as it:
        assert of(await it.ask()) == ("transient", False)
    async with made(status(500, b"y" * 200_000)) as it:
        assert of(await it.ask()) == ("transient", False)
        assert len(it.double.requests) == 1


# Streams that end oddly but whole


async def test_an_openai_answer_whose_finish_reason_came_is_kept_when_the_stream_breaks_off_or_stalls():
    events = [delta(content="whole"), delta("stop")]
    for end in ("cut", "stall"):
        async with openai(stream(events, end=end), retry="idle_timeout_ms = 200") as it:
            outcome = await it.ask()
            assert outcome["output"][0]["text"] == "whole"
            assert "usage" not in outcome
            assert len(it.double.requests) == 1


async def test_an_anthropic_answer_is_whole_with_its_last_event_though_the_connection_stays_open():
    async with messages(anthropic(anthropic_text(), end="stall"), retry="idle_timeout_ms = 5000") as it:
        async with asyncio.timeout(4):
            assert (await it.ask())["output"][0]["text"] == "hello"
        assert len(it.double.requests) == 1
    # Without it the answer is cut.
    cut = anthropic(anthropic_text(), whole=False, end="cut")
    async with messages(cut, retry=ONCE) as it:
        assert of(await it.ask()) == ("transient", True)


async def test_pings_keep_a_silent_answer_of_anthropic_alive():
    async def thinks(wire):
        await wire.head(200, SSE)
        for _ in range(12):
            await asyncio.sleep(0.25)
            await chunk(wire, b'event: ping\ndata: {"type": "ping"}\n\n')
        await anthropic(anthropic_text())(SimpleNamespace(head=nothing, send=wire.send))

    async def nothing(*_):
        pass

    async with messages(thinks, retry="attempts = 1\nidle_timeout_ms = 2000") as it:
        assert (await it.ask())["output"][0]["text"] == "hello"


@BOTH
async def test_what_is_no_event_by_the_standard_is_passed_over(made):
    async def reply(wire):
        async def send(data):
            # Ids, comments and waits between all events.
            await wire.send(data)
            if data.startswith(b"0"):
                return
            for block in (b"id: 7\n\n", b": still here\n\n", b"retry: 5\n\n", b"\n\n"):
                await chunk(wire, block)

        await plain(made)(SimpleNamespace(head=wire.head, send=send))

    async with made(reply, retry=ONCE) as it:
        assert (await it.ask())["output"][0]["text"] == "hello"


@BOTH
@pytest.mark.parametrize("cookie", ["a=b; Path=/", "a=\xff; Path=/"])
async def test_no_cookie_goes_to_the_next_call(made, cookie):
    reply = openai_text if made is openai else lambda **more: anthropic(anthropic_text(), **more)
    async with made(reply(headers={"set-cookie": cookie})) as it:
        for number in range(2):
            assert (await it.ask(effect_id=f"e{number}"))["output"]
        assert "cookie" not in it.double.requests[1].headers


@BOTH
async def test_connections_are_used_again(made):
    async with made(plain(made)) as it:
        for number in range(5):
            await it.ask(effect_id=f"e{number}")
        assert len(it.double.requests) == 5
        assert it.double.connections == 1


@BOTH
async def test_slow_bytes_one_at_a_time_are_waited_for(made):
    events = [delta(content="hello"), delta("stop")]
    whole = (
        stream(events, byte_by_byte=True)
        if made is openai
        else anthropic(anthropic_text(), byte_by_byte=True)
    )
    async with made(whole) as it:
        assert (await it.ask())["output"][0]["text"] == "hello"


@BOTH
async def test_an_exception_that_nobody_foresaw_is_an_outcome_without_its_key(made, monkeypatch, capsys):
    def broken(self, event):
        raise LookupError(f"no {KEY} in here")

    for name in ("openai_answer.OpenAiStream.take", "anthropic_answer.AnthropicStream.take"):
        monkeypatch.setattr(f"services.model_executor.direct.{name}", broken)
    async with made(plain(made), retry=ONCE) as it:
        outcome = await it.ask()
        assert outcome["kind"] == "failed"
        assert KEY not in json.dumps(outcome)
    with contextlib.suppress(AttributeError):
        assert KEY not in capsys.readouterr().out
