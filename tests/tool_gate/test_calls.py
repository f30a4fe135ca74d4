"""Keyed calls: run once, outlive their clients and the gate, and stay uncertain when nobody knows (mcp-pool 9.4)."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from services.tool_gate.failures import (
    AnswerInvalid,
    HttpStatus,
    Lost,
    RpcError,
    SessionGone,
    TimedOut,
    Unreachable,
)
from services.tool_gate.rows import KEEP_MS, CallRows
from tests.tool_gate.fakes import FakeServers
from tests.tool_gate.support import BASE, BOUND, FAR, OTHER, SESSION, gate, manifest, running, token, until

DOCUMENT = manifest({"name": "far", "type": "sse", "url": "https://far.example/sse"})
UNKNOWN = "The Tool Gate started this call and has no answer to it."


@pytest.fixture
async def servers():
    return FakeServers()


@pytest.fixture
async def it(tmp_path, servers):
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load) as gated:
        yield gated


def calls(servers):
    return [asked for upstream in servers.made for asked in upstream.asked]


async def test_the_same_call_joins_whatever_its_bytes_and_its_token(it, servers):
    servers.hold = asyncio.Event()
    first = asyncio.create_task(it.client.call("echo", {"a": 1, "b": [2]}))
    await until(lambda: calls(servers))
    it.core.sessions[SESSION]["epoch"] = 2
    other_bytes = (
        b'{ "name":"echo", "effectId":"e1","arguments":{"b":[2.0],"a":1},'
        b'"server":{"serverName":"far","sessionId":"session-1","capabilityId":"cap"}}'
    )
    again = asyncio.create_task(
        it.client.post(
            f"{BASE}/tool-calls", other_bytes, bearer=token(epoch=2), headers={"Idempotency-Key": "e1"}
        )
    )
    await until(lambda: it.core.asked.count(f"/v1/sessions/{SESSION}") == 2)
    servers.hold.set()
    assert (await first).body == (await again).body == {"ok": True, "result": {}}
    assert len(calls(servers)) == 1


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(
    "other",
    [{"name": "b"}, {"arguments": {"a": 2}}, {"server": {"agentId": "helper", **FAR}}, {"extra": 1}],
)
async def test_another_call_under_the_same_key_is_a_conflict(it, servers, other, settled):
    servers.hold = asyncio.Event()
    first = asyncio.create_task(it.client.call("echo", {"a": 1}))
    await until(lambda: calls(servers))
    if settled:
        servers.hold.set()
        await first
    body = {"server": FAR, "effectId": "e1", "name": "echo", "arguments": {"a": 1}, **other}
    answer = await it.client.post(f"{BASE}/tool-calls", body, headers={"Idempotency-Key": "e1"})
    assert (answer.status, answer.code) == (409, "gate_conflict")
    servers.hold.set()
    await first
    assert len(calls(servers)) == 1


async def test_another_session_s_key_is_a_conflict_and_its_cancel_is_forbidden(it, servers):
    servers.hold = asyncio.Event()
    first = asyncio.create_task(it.client.call("echo"))
    await until(lambda: calls(servers))
    answer = await it.client.call("echo", bearer=token(OTHER))
    assert (answer.status, answer.code) == (409, "gate_conflict")
    refused = await it.client.cancel(bearer=token(OTHER))
    assert (refused.status, refused.code) == (403, "gate_forbidden")
    servers.hold.set()
    assert (await first).body["ok"]


async def test_an_older_epoch_gets_nothing_of_a_call_that_a_newer_one_holds(it, servers):
    servers.hold = asyncio.Event()
    it.core.sessions[SESSION]["epoch"] = 2
    first = asyncio.create_task(it.client.call("echo", bearer=token(epoch=2)))
    await until(lambda: calls(servers))
    # The core is asked before; here it says what it said a moment ago.
    it.core.sessions[SESSION]["epoch"] = 1
    answer = await it.client.call("echo", bearer=token(epoch=1))
    assert (answer.status, answer.code) == (409, "run_stale")
    servers.hold.set()
    assert (await first).body["ok"]


async def test_a_call_goes_on_when_its_client_leaves_and_the_next_one_gets_its_answer(it, servers):
    servers.hold = asyncio.Event()
    first = asyncio.create_task(it.client.call("echo"))
    await until(lambda: calls(servers))
    first.cancel()
    await asyncio.wait({first})
    again = asyncio.create_task(it.client.call("echo"))
    await until(lambda: it.core.asked.count(f"/v1/sessions/{SESSION}") == 2)
    servers.hold.set()
    assert (await again).body == {"ok": True, "result": {}}
    assert len(calls(servers)) == 1
    assert servers.made[0].cancelled == 0


async def test_a_cancel_aborts_the_call_and_leaves_it_uncertain_for_ever(it, servers):
    servers.hold = asyncio.Event()
    call = asyncio.create_task(it.client.call("echo", effect="t:0:tool:x"))
    await until(lambda: calls(servers))
    assert (await it.client.cancel("t:0:tool:x")).status == 204
    assert (await call).body == {
        "ok": False,
        "error": {"message": "The call was cancelled.", "uncertain": True},
    }
    assert servers.made[0].cancelled == 1
    servers.hold.set()
    again = await it.client.call("echo", effect="t:0:tool:x")
    assert again.body == {"ok": False, "error": {"message": UNKNOWN, "uncertain": True}}
    assert len(calls(servers)) == 1
    assert (await it.client.cancel("t:0:tool:x")).status == 204


async def test_a_cancel_of_a_call_that_has_ended_changes_nothing(it, servers):
    first = await it.client.call("echo")
    assert (await it.client.cancel()).status == 204
    assert (await it.client.call("echo")).body == first.body


async def test_a_cancel_has_no_body(it):
    answer = await it.client.post(f"{BASE}/tool-calls/e1/cancel", {})
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (RpcError(-32602, "no such tool"), {"message": "MCP error -32602: no such tool", "code": -32602}),
        (HttpStatus(500), {"message": "The MCP server answered with HTTP status 500.", "code": 500}),
        (Unreachable("no way"), {"message": "no way"}),
        (AnswerInvalid("odd"), {"message": "odd"}),
        (Lost("gone"), {"message": "gone", "uncertain": True}),
        (TimedOut("late"), {"message": "late", "uncertain": True}),
    ],
)
async def test_a_failure_is_the_answer_to_everybody_who_asks(it, servers, failure, error):
    servers.results = [failure]
    for _ in range(2):
        answer = await it.client.call("echo")
        assert (answer.status, answer.body) == (200, {"ok": False, "error": error})
    assert len(calls(servers)) == 1


async def test_a_lost_listing_is_not_uncertain(it, servers):
    servers.results = [Lost("gone")]
    assert (await it.client.list_page()).body == {"ok": False, "error": {"message": "gone"}}


async def test_a_401_says_that_signing_in_is_not_built(it, servers):
    servers.open_failure = HttpStatus(401)
    error = (await it.client.connect()).body["error"]
    assert error["code"] == 401
    assert "OAuth" in error["message"]


async def test_a_session_that_is_gone_is_begun_again_once(it, servers):
    servers.results = [SessionGone(), {"content": []}]
    assert (await it.client.call("echo")).body == {"ok": True, "result": {"content": []}}
    assert [len(upstream.asked) for upstream in servers.made] == [1, 1]
    await until(lambda: servers.made[0].closed)
    servers.results = [SessionGone(), SessionGone()]
    answer = (await it.client.call("echo", effect="e2")).body
    assert answer["error"]["message"] == "The MCP server does not know its session any more."
    assert "uncertain" not in answer["error"]


async def test_an_answer_is_there_after_a_restart_and_an_open_call_stays_uncertain(tmp_path, servers):
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load) as it:
        servers.result = {"content": [{"type": "text", "text": "once \ud83d"}]}
        first = await it.client.call("echo", {"a": 1})
        servers.hold = asyncio.Event()
        pending = asyncio.create_task(it.client.call("echo", effect="e2"))
        await until(lambda: len(calls(servers)) == 2)
        await it.end()
        stopped = (await pending).body
        assert stopped["error"] == {
            "message": "The Tool Gate was stopped during the call.",
            "uncertain": True,
        }
        servers.hold = None
        async with running(it.settings, servers.load) as (ready, _, _):
            it.client.url = ready.url
            assert (await it.client.call("echo", {"a": 1})).body == first.body
            for _ in range(2):
                again = await it.client.call("echo", effect="e2")
                assert again.body == {"ok": False, "error": {"message": UNKNOWN, "uncertain": True}}
            conflict = await it.client.call("echo", {"a": 2})
            assert conflict.status == 409
        assert len(calls(servers)) == 2


async def test_a_stop_waits_for_calls_and_takes_no_new_ones(tmp_path, servers):
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load, drain_s=BOUND) as it:
        servers.hold = asyncio.Event()
        call = asyncio.create_task(it.client.call("echo"))
        await until(lambda: calls(servers))
        it.stop.set()
        refused = await it.client.call("echo", effect="e2")
        assert (refused.status, refused.code) == (503, "unavailable")
        assert (await it.client.get("/ready")).status == 503
        servers.hold.set()
        assert (await call).body["ok"]
        async with asyncio.timeout(BOUND):
            await it.task
    assert servers.made[0].closed


async def test_a_file_that_can_not_be_written_means_that_no_call_is_made(it, servers, monkeypatch):
    def broken(*_):
        raise sqlite3.OperationalError("disk full")

    monkeypatch.setattr(CallRows, "_begin", broken)
    answer = await it.client.call("echo")
    assert (answer.status, answer.code) == (503, "unavailable")
    monkeypatch.undo()
    assert calls(servers) == []
    assert (await it.client.call("echo")).body["ok"]


async def test_an_answer_that_can_not_be_written_is_given_all_the_same(it, servers, monkeypatch):
    async def broken(*_):
        from services.tool_gate.rows import RowsFailed

        raise RowsFailed("disk full")

    monkeypatch.setattr(CallRows, "settle", broken)
    assert (await it.client.call("echo")).body["ok"]
    assert (await it.client.call("echo")).body["ok"]
    assert len(calls(servers)) == 1


async def test_answers_are_kept_a_day_in_a_file_for_its_owner_alone(tmp_path):
    now = [1_000_000]
    path = tmp_path / "folder" / "rows.db"
    rows = CallRows(path, lambda: now[0])
    try:
        assert (await rows.begin("old", "s", 1, b"d")).verdict == "fresh"
        assert (await rows.begin("open", "s", 1, b"d")).verdict == "fresh"
        await rows.settle("old", "answer")
        now[0] += KEEP_MS - 1
        assert await rows.forget_old() == 0
        kept = await rows.begin("old", "s", 2, b"d")
        assert (kept.verdict, kept.answer) == ("answered", "answer")
        assert (await rows.begin("old", "s", 1, b"d")).verdict == "stale"
        assert (await rows.begin("old", "s", 2, b"e")).verdict == "conflict"
        assert (await rows.begin("old", "t", 2, b"d")).verdict == "conflict"
        now[0] += 1
        assert await rows.forget_old() == 1
        assert (await rows.begin("open", "s", 1, b"d")).verdict == "open"
        assert (path.stat().st_mode & 0o777) == 0o600
    finally:
        await rows.close()


async def test_too_many_bytes_of_answers_make_the_oldest_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr("services.tool_gate.rows.MOST_BYTES", 10)
    rows = CallRows(tmp_path / "rows.db", lambda: 1)
    try:
        for key in ("a", "b", "c"):
            await rows.begin(key, "s", 1, b"d")
            await rows.settle(key, "12345")
        assert await rows.forget_old() == 1
        verdicts = [(await rows.begin(key, "s", 1, b"d")).verdict for key in ("a", "b", "c")]
        assert sorted(verdicts) == ["answered", "answered", "open"]
    finally:
        await rows.close()
