"""Calls of stdio servers, good and bad ones."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from whippletree.v1.common_pb2 import (
    ABORT_KIND_CANCEL,
    ABORT_KIND_DEADLINE,
    ABORT_KIND_OWNERSHIP_LOST,
    ABORT_KIND_SHUTDOWN,
)

from services.common.effect_run import AbortLatch, EffectAborted, EffectRaised
from services.common.logs import trace_context
from services.mcp_pool import limits as fixed
from tests.mcp_pool.support import (
    LIMITS,
    SESSION,
    declared,
    official,
    process_gone,
    received,
    running,
    stdio,
    until,
)

IMPATIENT = dataclasses.replace(LIMITS, request=0.4)


@pytest.fixture
def record(tmp_path):
    return tmp_path / "record"


@pytest.fixture
async def harness(tmp_path):
    async with running(tmp_path) as harness:
        yield harness


@pytest.fixture
async def impatient(tmp_path):
    async with running(tmp_path, IMPATIENT) as harness:
        yield harness


def completed(output):
    return {"kind": "completed", "output": output}


async def test_tools_of_a_server_written_with_the_official_sdk_are_called(harness):
    server = official()
    assert await harness.call(server, "add", {"a": 2, "b": 3}) == completed({"total": 5})
    assert await harness.call(server, "greet", {"name": "Ada"}) == completed("Good day, Ada.")
    assert await harness.call(server, "mixed") == completed("a\nb")
    failed = await harness.call(server, "fail")
    assert failed["code"] == "mcp.tool"
    assert "no luck" in failed["message"]
    assert len(harness.executor.pool) == 1


async def test_a_session_is_initialised_once_and_offers_nothing(harness, record):
    server = stdio(record=record)
    await harness.call(server, "echo")
    await harness.call(server, "echo")
    methods = [message["method"] for message in received(record)]
    assert methods == ["initialize", "notifications/initialized", "tools/call", "tools/call"]
    first, _, call, _ = received(record)
    assert first["params"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "nylorun-runtime", "version": "0.6.0"},
    }
    assert first["params"]["clientInfo"] == {"name": "nylorun-runtime", "version": "0.6.0"}
    assert call["params"] == {"name": "echo", "arguments": {}}


async def test_unicode_numbers_and_key_order_survive_the_way_there_and_back(harness, record):
    server = stdio(record=record)
    arguments = {"b": 1.5, "é": "😀", "2": 1e21, "1": [None, True]}
    assert await harness.call(server, "echo", arguments) == completed(arguments)
    assert (await harness.call(server, "echo", {"big": 2**60}))["output"] == {"big": 1152921504606847000}
    text = '{"structuredContent":{"b":1.0,"2":1e400,"1":"\\ud800"}}'
    outcome = await harness.call(server, "raw", {"text": text})
    assert list(outcome["output"].items()) == [("1", "\ud800"), ("2", None), ("b", 1)]


@pytest.mark.spec("mcp-pool:11.19", "operations:13.12")
async def test_servers_see_the_allowed_environment_only(tmp_path):
    environ = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "NYLORUN_GRPC_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "NODE_OPTIONS": "secret",
        "lc_all": "secret",
    }
    async with running(tmp_path, environ=environ) as harness:
        seen = (await harness.call(stdio("plain"), "environment"))["output"]
        root = harness.root
        assert seen["HOME"] == root.home
        assert seen["TMPDIR"] == root.temporary
        assert seen["PATH"] == "/usr/bin:/bin"
        assert seen["LC_ALL"] == "C.UTF-8"
        assert seen["PLUGIN_DATA"] == f"{root.plugin_data}/cap"
        assert "secret" not in seen.values()
        assert "PLUGIN_ROOT" not in seen
        own = (await harness.call(stdio("own", env={"HOME": "/mine"}), "environment"))["output"]
        assert own["HOME"] == "/mine"
        where = (await harness.call(stdio("plain"), "where"))["output"]
        assert where["cwd"] == seen["PLUGIN_DATA"]


@pytest.mark.spec("mcp-pool:11.22")
async def test_junk_on_stdout_is_ignored(harness):
    assert await harness.call(stdio(), "junk") == completed("after junk")


@pytest.mark.spec("mcp-pool:11.23")
@pytest.mark.parametrize("how", ["die", "die-with-child"])
async def test_a_server_that_dies_during_a_call_fails_it_at_once_and_the_next_call_starts_another(
    harness, tmp_path, how
):
    mark = tmp_path / "starts"
    server = stdio("bad", f"mark={mark}")
    waiting = asyncio.create_task(harness.call(server, "never"))
    await until(mark.exists)
    with pytest.raises(EffectRaised, match=r"exited \(3\)"):
        await harness.call(server, how)
    with pytest.raises(EffectRaised, match=r"exited \(3\)"):
        await waiting
    assert await harness.call(server, "echo", {"n": 1}) == completed({"n": 1})
    assert len(mark.read_text().split()) == 2


@pytest.mark.spec("mcp-pool:11.24")
async def test_a_server_that_never_answers_is_told_that_the_call_is_cancelled(impatient, record):
    server = stdio(record=record)
    with pytest.raises(EffectRaised, match="did not answer tools/call within"):
        await impatient.call(server, "never")
    (call,) = received(record, "tools/call")
    (cancelled,) = await until(lambda: received(record, "notifications/cancelled"))
    assert cancelled["params"]["requestId"] == call["id"]
    assert isinstance(cancelled["params"]["reason"], str)
    assert "id" not in cancelled
    assert await impatient.call(server, "echo") == completed({})


async def test_an_answer_after_the_timeout_is_dropped(impatient, tmp_path):
    server, gate = stdio(), tmp_path / "gate"
    with pytest.raises(EffectRaised):
        await impatient.call(server, "wait", {"file": str(gate)})
    gate.touch()
    assert await impatient.call(server, "echo", {"n": 2}) == completed({"n": 2})


async def test_a_server_that_never_initialises_fails_the_call(impatient, record):
    with pytest.raises(EffectRaised, match="did not answer initialize"):
        await impatient.call(stdio("bad", "silent", record=record), "echo")
    assert await until(lambda: received(record, "notifications/cancelled"))


@pytest.mark.spec("mcp-pool:11.25")
async def test_a_call_ends_although_the_server_stopped_reading_and_the_connection_is_dropped(impatient):
    server = stdio("bad", "stop-reading")
    with pytest.raises(EffectRaised, match="did not answer tools/call within"):
        await impatient.call(server, "echo", {"text": "x" * 1024 * 1024})
    assert len(impatient.executor.pool) == 0


async def test_calls_wait_while_a_server_has_much_left_to_read_and_are_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(fixed, "BACKLOG_BYTES", 256 * 1024)
    abort = AbortLatch()
    async with running(tmp_path, dataclasses.replace(LIMITS, request=2.0)) as harness:
        server = stdio("bad", "stop-reading")
        first = asyncio.create_task(harness.call(server, "echo", {"text": "x" * 1024 * 1024}))
        entry = await until(lambda: harness.executor.pool.take_live(SESSION.key(declared(server).name)))
        child = entry.connection._child
        await until(lambda: child.unwritten > fixed.BACKLOG_BYTES)
        unwritten = child.unwritten
        others = [
            asyncio.create_task(harness.call(server, "echo", {"text": "x" * 1024 * 1024}, abort=abort))
            for _ in range(5)
        ]
        # The test's own use and six calls.
        await until(lambda: entry.active == 7)
        abort.set(ABORT_KIND_CANCEL)
        for call in others:
            with pytest.raises(EffectAborted):
                await call
        assert child.unwritten == unwritten
        with pytest.raises(EffectRaised):
            await first


async def test_a_slow_reader_gets_everything_in_the_end(harness, monkeypatch):
    monkeypatch.setattr(fixed, "BACKLOG_BYTES", 1024)
    text = "x" * 300_000
    outcomes = await asyncio.gather(*(harness.call(stdio(), "echo", {"text": text}) for _ in range(8)))
    assert all(outcome["output"]["text"] == text for outcome in outcomes)


async def test_a_server_that_reads_on_keeps_its_connection_after_a_timeout(impatient):
    with pytest.raises(EffectRaised):
        await impatient.call(stdio(), "never")
    assert len(impatient.executor.pool) == 1


@pytest.mark.spec("mcp-pool:11.26")
async def test_a_cancel_stops_waiting_and_tells_the_server(harness, record):
    server, abort = stdio(record=record), AbortLatch()
    call = asyncio.create_task(harness.call(server, "never", abort=abort))
    (sent,) = await until(lambda: received(record, "tools/call"))
    abort.set(ABORT_KIND_CANCEL)
    with pytest.raises(EffectAborted) as caught:
        await call
    assert caught.value.kind == ABORT_KIND_CANCEL
    (cancelled,) = await until(lambda: received(record, "notifications/cancelled"))
    assert cancelled["params"]["requestId"] == sent["id"]


@pytest.mark.spec("mcp-pool:11.26")
@pytest.mark.parametrize("kind", [ABORT_KIND_SHUTDOWN, ABORT_KIND_DEADLINE, ABORT_KIND_OWNERSHIP_LOST])
async def test_other_aborts_let_the_call_finish(harness, record, tmp_path, kind):
    server, abort, gate = stdio(record=record), AbortLatch(), tmp_path / "gate"
    call = asyncio.create_task(harness.call(server, "wait", {"file": str(gate)}, abort=abort))
    await until(lambda: received(record, "tools/call"))
    abort.set(kind)
    gate.touch()
    assert await call == completed("waited")
    assert received(record, "notifications/cancelled") == []


async def test_an_abort_from_before_the_call_counts(harness, record):
    server, abort = stdio(record=record), AbortLatch()
    abort.set(ABORT_KIND_CANCEL)
    with pytest.raises(EffectAborted):
        await harness.call(server, "echo", abort=abort)
    assert not record.exists()


async def test_a_cancel_while_the_server_is_being_opened_ends_the_wait_and_sends_no_call(
    harness, record, tmp_path
):
    gate = tmp_path / "gate"
    server, abort = stdio("bad", f"wait={gate}", record=record), AbortLatch()
    call = asyncio.create_task(harness.call(server, "echo", abort=abort))
    await until(lambda: received(record, "initialize"))
    abort.set(ABORT_KIND_CANCEL)
    with pytest.raises(EffectAborted):
        await call
    gate.touch()
    assert await harness.call(server, "echo") == completed({})
    assert len(received(record, "initialize")) == 1
    assert len(received(record, "tools/call")) == 1


@pytest.mark.spec("mcp-pool:11.41")
async def test_requests_of_the_server_are_answered_while_a_call_is_under_way(harness):
    outcome = await harness.call(stdio(), "ask")
    roots, sampling, ping = outcome["output"]["replies"]
    assert (roots["id"], roots["error"]["code"]) == ("r", -32601)
    assert (sampling["id"], sampling["error"]["code"]) == (7, -32601)
    assert ping == {"jsonrpc": "2.0", "id": "p", "result": {}}


async def test_an_error_of_the_server_raises_with_its_text(harness):
    with pytest.raises(EffectRaised, match="-32602: no such thing"):
        await harness.call(stdio(), "error")


async def test_an_answer_that_is_no_mcp_result_raises_at_once(harness):
    for result in ({"content": "x"}, [], {"isError": 1}):
        with pytest.raises(EffectRaised, match="tools/call"):
            await harness.call(stdio(), "result", {"result": result})


async def test_an_answer_that_nests_too_deep_raises_at_once(harness):
    text = '{"structuredContent":{"a":' + "[" * 2000 + "]" * 2000 + "}}"
    with pytest.raises(EffectRaised, match="nests too deep"):
        await harness.call(stdio(), "raw", {"text": text})


async def test_an_id_that_comes_back_as_text_is_recognised(harness):
    assert await harness.call(stdio(), "id-as-text") == completed("still mine")


@pytest.mark.parametrize("size", [fixed.PARSE_OFF_LOOP_BYTES, 5 * 1024 * 1024])
async def test_large_answers_arrive_whole(harness, size):
    assert await harness.call(stdio(), "large", {"size": size}) == completed("x" * size)


async def test_a_large_answer_written_just_before_the_exit_still_counts(harness):
    server = stdio("bad")
    call = asyncio.create_task(harness.call(server, "large", {"size": 3 * 1024 * 1024}))
    die = asyncio.create_task(harness.call(server, "die"))
    assert (await call)["output"] == "x" * 3 * 1024 * 1024
    with pytest.raises(EffectRaised):
        await die


async def test_large_arguments_arrive_whole(harness):
    arguments = {"text": "y" * 5 * 1024 * 1024}
    assert await harness.call(stdio(), "echo", arguments) == completed(arguments)


async def test_a_line_without_end_closes_the_connection(harness):
    with pytest.raises(EffectRaised, match="more than 10 MiB without a line end"):
        await harness.call(stdio(), "endless")
    assert len(harness.executor.pool) == 0


async def test_a_flood_of_notifications_does_not_hold_up_another_server(harness):
    flooding, calm = stdio("flooding"), stdio("calm")
    await harness.call(flooding, "echo")
    await harness.call(calm, "echo")
    flood = asyncio.create_task(harness.call(flooding, "flood", {"count": 100_000}))
    answered = 0
    while not flood.done():
        await harness.call(calm, "echo")
        answered += 1
    assert await flood == completed("after flood")
    assert answered > 10


async def test_a_server_that_closed_its_stdin_is_replaced_by_the_next_call(impatient, tmp_path):
    mark = tmp_path / "starts"
    server = stdio("bad", "close-stdin", f"mark={mark}")
    started = 0
    for _ in range(2):
        with pytest.raises(EffectRaised):
            await impatient.call(server, "echo")
        assert len(impatient.executor.pool) == 0
        before, started = started, len(mark.read_text().split())
        assert started > before


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (stdio("bad", "exit=0"), r"exited \(0\)"),
        (stdio("bad", "exit=9"), r"exited \(9\)"),
        (stdio("bad", "version=1999-01-01"), "1999-01-01"),
        (stdio("bad", "refuse=not today"), "-32000: not today"),
        ({"name": "bad", "type": "stdio", "command": "no-such-command"}, "not found in PATH"),
        ({"name": "bad", "type": "stdio", "command": "./server"}, "plugin root"),
    ],
)
async def test_a_server_that_cannot_be_opened_raises_with_the_reason(harness, server, says):
    with pytest.raises(EffectRaised, match=says):
        await harness.call(server, "echo")
    assert len(harness.executor.pool) == 0


async def test_calls_of_one_connection_overlap(harness, tmp_path):
    server, gate = stdio(), tmp_path / "gate"
    waiting = [asyncio.create_task(harness.call(server, "wait", {"file": str(gate)})) for _ in range(5)]
    assert await harness.call(server, "echo") == completed({})
    assert not any(task.done() for task in waiting)
    gate.touch()
    assert await asyncio.gather(*waiting) == [completed("waited")] * 5


async def test_closing_takes_grandchildren_and_stubborn_servers_along(tmp_path):
    async with running(tmp_path) as harness:
        server = stdio("bad", "ignore-sigterm")
        pids = [(await harness.call(server, "fork"))["output"]["pid"]]
        pids.append((await harness.call(server, "where"))["output"]["pid"])
    for pid in pids:
        await until(lambda pid=pid: process_gone(pid))


async def test_a_cancelled_close_kills_at_once(tmp_path):
    patient = dataclasses.replace(LIMITS, grace=dataclasses.replace(LIMITS.grace, after_stdin=60))
    async with running(tmp_path, patient) as harness:
        pid = (await harness.call(stdio("bad", "ignore-sigterm"), "where"))["output"]["pid"]
        closing = asyncio.create_task(harness.executor.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: process_gone(pid))


@pytest.mark.parametrize("moment", ["before the call", "during the call"])
async def test_a_cancelled_task_leaves_the_connection_usable(harness, record, moment):
    server = stdio(record=record)
    await harness.call(server, "echo")
    task = asyncio.create_task(harness.call(server, "never"))
    if moment == "during the call":
        await until(lambda: len(received(record, "tools/call")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await harness.call(server, "echo") == completed({})
    assert harness.executor.pool.take_live(SESSION.key(declared(server).name))


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("asked", [True, False])
async def test_servers_are_told_the_trace_of_a_call_only_when_that_is_asked_for(tmp_path, asked):
    record = tmp_path / "record"
    async with running(tmp_path, traceparent=asked) as harness:
        await harness.call(stdio(record=record), "echo", {"a": 1})
        trace_context.set(TRACE)
        await harness.call(stdio(record=record), "echo", {"a": 1})
    without, with_trace = (message["params"] for message in received(record, "tools/call"))
    assert without == {"name": "echo", "arguments": {"a": 1}}
    assert with_trace == without | ({"_meta": {"traceparent": TRACE}} if asked else {})


async def test_the_gauge_of_children_returns_to_zero_however_they_end(tmp_path):
    async with running(tmp_path) as harness:
        executor = harness.executor
        await harness.call(stdio("a"), "echo")
        await harness.call(stdio("b", "ignore-sigterm"), "echo")
        assert executor.children == 2
        with pytest.raises(EffectRaised):
            await harness.call(stdio("a"), "die")
        with pytest.raises(EffectRaised):
            await harness.call(stdio("c", "exit=1"), "echo")
        with pytest.raises(EffectRaised):
            await harness.call({**stdio("d"), "command": "no-such-command"}, "echo")
        await until(lambda: executor.children == 1)
        assert await executor.close_session(SESSION) == 1
        assert executor.children == 0
