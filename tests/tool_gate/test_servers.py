"""Real servers behind a real gate: streamable HTTP with events and with JSON, and SSE."""

from __future__ import annotations

import asyncio

import pytest

from tests.tool_gate.remote_server import Events, serving
from tests.tool_gate.support import BOUND, FAR, OTHER, gate, manifest, token, until

KINDS = ("events", "json", "sse")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_connected_listed_and_called(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        assert (await it.client.connect()).body == {"ok": True, "result": None}
        listed = (await it.client.list_page()).body
        assert [tool["name"] for tool in listed["result"]["tools"]] == [
            "echo",
            "big",
            "wait",
            "interrupted",
            "asks",
            "mixed",
            "fail",
            "leak",
        ]
        assert set(listed["result"]) == {"tools"}
        answer = await it.client.call("echo", {"said": "hé 😀"})
        assert answer.body["result"]["structuredContent"] == {"said": "hé 😀"}
        failed = await it.client.call("fail", effect="e2")
        assert failed.body["ok"]
        assert failed.body["result"]["isError"]
        assert remote.calls == [("echo", "hé 😀"), ("fail", None)]


@pytest.mark.parametrize("kind", KINDS)
async def test_one_call_at_the_server_whoever_asks_again(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        first = asyncio.create_task(it.client.call("wait", {"name": "x"}))
        async with asyncio.timeout(BOUND):
            await remote.called.wait()
        again = asyncio.create_task(it.client.call("wait", {"name": "x"}))
        await until(lambda: it.core.asked.count("/v1/sessions/session-1") == 2)
        remote.hold.set()
        assert (await first).body == (await again).body
        assert (await it.client.call("wait", {"name": "x"})).body == (await first).body
        assert remote.calls == [("wait", "x")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_is_passed_on_and_the_call_is_uncertain_from_then_on(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        call = asyncio.create_task(it.client.call("wait", {"name": "x"}, effect="t:0:x"))
        async with asyncio.timeout(BOUND):
            await remote.called.wait()
        assert (await it.client.cancel("t:0:x")).status == 204
        assert (await call).body["error"]["uncertain"]
        await until(lambda: remote.cancelled)
        again = (await it.client.call("wait", {"name": "x"}, effect="t:0:x")).body
        assert again["error"]["uncertain"]
        assert len(remote.calls) == 1
        # The connection lives on.
        assert (await it.client.call("echo", {"said": "y"}, effect="e2")).body["ok"]


@pytest.mark.spec("mcp-pool:11.41")
@pytest.mark.parametrize("kind", ["events", "sse"])
async def test_a_server_s_own_requests_are_answered_while_its_call_is_under_way(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        answer = await it.client.call("asks")
        assert answer.body["result"]["content"][0]["text"] == "{} -32601 -32601"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_without_an_answer_in_time_is_cancelled_and_uncertain(tmp_path, kind):
    async with (
        serving(kind) as remote,
        gate(tmp_path, manifest(remote.declaration), request_s=0.5) as it,
    ):
        answer = await it.client.call("wait", {"name": "x"})
        assert answer.body["error"] == {
            "message": "The MCP server did not answer tools/call within 0.5 s.",
            "uncertain": True,
        }
        await until(lambda: remote.cancelled)


@pytest.mark.parametrize("kind", ["events", "json"])
async def test_a_session_that_the_server_forgot_is_begun_again_and_the_call_made_once(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        assert (await it.client.call("echo", {"said": "a"})).body["ok"]
        [old] = remote.sessions
        remote.refuse = 404
        gone = await it.client.call("echo", {"said": "b"}, effect="e2")
        assert gone.body["error"]["code"] == 404
        remote.refuse = None
        assert (await it.client.call("echo", {"said": "c"}, effect="e3")).body["ok"]
        assert len(remote.sessions - {old}) == 1
        assert [said for _, said in remote.calls] == ["a", "c"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_was_restarted_is_reached_again_without_its_old_session(tmp_path, kind):
    async with serving(kind) as before:
        declaration = before.declaration
        port = int(before.url.rpartition(":")[2].partition("/")[0])
        async with gate(tmp_path, manifest(declaration)) as it:
            assert (await it.client.call("echo", {"said": "a"})).body["ok"]
            await before.stop()
            down = (await it.client.call("echo", {"said": "b"}, effect="e2")).body
            assert not down["ok"]
            assert "uncertain" not in down["error"]
            async with serving(kind, port=port) as after:
                assert (await it.client.call("echo", {"said": "c"}, effect="e3")).body["ok"]
            assert after.calls == [("echo", "c")]


async def test_an_answer_whose_stream_is_closed_is_taken_up_again(tmp_path):
    async with (
        serving("events", event_store=Events(), retry_ms=20) as remote,
        gate(tmp_path, manifest(remote.declaration)) as it,
    ):
        call = asyncio.create_task(it.client.call("interrupted"))
        async with asyncio.timeout(BOUND):
            await remote.called.wait()
        remote.hold.set()
        assert (await call).body["result"]["content"][0]["text"] == "after all"
        assert len(remote.calls) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_dies_during_a_call_leaves_it_uncertain_at_once(tmp_path, kind):
    async with (
        serving(kind) as remote,
        gate(tmp_path, manifest(remote.declaration), request_s=2 * BOUND) as it,
    ):
        call = asyncio.create_task(it.client.call("wait", {"name": "x"}))
        async with asyncio.timeout(BOUND):
            await remote.called.wait()
            await remote.stop()
            answer = await call
        assert answer.body["error"]["uncertain"]
        down = (await it.client.call("echo", {"said": "a"}, effect="e2")).body
        assert not down["ok"]
        assert "uncertain" not in down["error"]


@pytest.mark.parametrize("kind", ["events", "json"])
async def test_large_answers_come_whole(tmp_path, kind):
    async with serving(kind) as remote, gate(tmp_path, manifest(remote.declaration)) as it:
        answer = await it.client.call("big", {"characters": 5_000_000})
        assert len(answer.body["result"]["content"][0]["text"]) == 5_000_000


async def test_sessions_and_agents_have_connections_of_their_own(tmp_path):
    async with serving("json") as remote:
        document = manifest(remote.declaration, child=remote.declaration)
        async with gate(tmp_path, document) as it:
            assert (await it.client.call("echo", {"said": "a"})).body["ok"]
            child = {"agentId": "helper", **FAR}
            assert (await it.client.call("echo", {"said": "b"}, effect="e2", server=child)).body["ok"]
            other = token(OTHER)
            assert (await it.client.call("echo", {"said": "c"}, effect="e3", bearer=other)).body["ok"]
            assert len(remote.sessions) == 3
            assert (await it.client.close()).status == 204
            await until(lambda: it.ready.pool.connections == 2)
            assert (await it.client.call("echo", {"said": "d"}, effect="e4")).body["ok"]
            assert len(remote.sessions) == 4
