"""The pool, a strict Tool Gate and real servers of the official SDK, one after the other (mcp-pool 11)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from services.common.effect_run import CANCEL, SHUTDOWN, AbortLatch, EffectAborted, EffectRaised
from tests.mcp_pool.support import LIMITS, SESSION, declared, remote, running, until
from tests.tool_gate.remote_server import serving
from tests.tool_gate.support import BOUND, OTHER, gate, manifest, token

KINDS = ("events", "json", "sse")
EFFECT = "t:0:tool:x"
FAR = {"capabilityId": "cap", "serverName": "far"}


@contextlib.asynccontextmanager
async def chained(folder, *servers, limits=LIMITS, token_id=None, child=None, grant=True):
    """A pool in front of a gate, for the servers' declarations."""
    document = manifest(*servers, child=child)
    async with (
        gate(folder, document, faults=True) as it,
        running(folder, limits, gates_url=it.url) as pool,
    ):
        if grant:
            pool.grants.put(SESSION, 1, token(SESSION.session_id, jti=token_id or "one"), "")
        it.document = document
        yield pool, it


async def seen(it):
    return (await it.client.get("/faults")).body["requests"]


def paths(requests):
    return [request["path"].removeprefix("/nylorun/v1/") for request in requests]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_server_is_discovered_and_its_tools_are_called(tmp_path, kind):
    async with serving(kind) as far, chained(tmp_path, far.declaration) as (pool, it):
        snapshot, diagnostics = await pool.discover(it.document)
        assert diagnostics == [{**FAR, "outcome": "connected", "message": "Connected"}]
        record = next(record for record in snapshot["mcpTools"] if record["serverToolName"] == "echo")
        assert (record["name"], record["description"]) == ("far__echo", "Says it again.")
        assert record["inputSchema"]["required"] == ["said"]
        outcome = await pool.call(far.declaration, "echo", {"said": "x"})
        assert outcome == {"kind": "completed", "output": {"said": "x"}}
        assert await pool.call(far.declaration, "fail") == {
            "kind": "failed",
            "code": "mcp.tool",
            "message": "Error executing tool fail: no luck",
        }
    # The strict gate refused nothing: every request was to the letter.
    assert [said for said, _ in far.calls] == ["echo", "fail"]


@pytest.mark.spec("mcp-pool:11.2")
async def test_of_two_servers_the_one_that_is_down_fails_and_the_other_s_tools_are_there(tmp_path):
    down = {**remote("down"), "url": "http://127.0.0.1:9/mcp"}
    async with serving("json") as far, chained(tmp_path, down, far.declaration) as (pool, it):
        snapshot, diagnostics = await pool.discover(it.document)
    assert [(one["serverName"], one["outcome"]) for one in diagnostics] == [
        ("down", "failed"),
        ("far", "connected"),
    ]
    assert diagnostics[0]["message"] == "127.0.0.1 does not answer on port 9."
    assert {record["serverName"] for record in snapshot["mcpTools"]} == {"far"}


@pytest.mark.spec("mcp-pool:11.4")
async def test_live_connections_are_kept_without_asking_the_gate_or_the_server(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        snapshot, _ = await pool.discover(it.document)
        before = len(await seen(it))
        assert await pool.executor.reconnect(SESSION, snapshot, [declared(far.declaration)]) == []
        assert len(await seen(it)) == before


@pytest.mark.spec("mcp-pool:11.5", "mcp-pool:11.6")
async def test_after_a_restart_of_the_pool_servers_are_connected_again_or_reported(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        snapshot, _ = await pool.discover(it.document)
        async with running(tmp_path / "again", gates_url=it.url) as again:
            again.grants.put(SESSION, 1, token(SESSION.session_id), "")
            assert await again.executor.reconnect(SESSION, snapshot, [declared(far.declaration)]) == []
            assert paths(await seen(it))[-1] == "mcp/connect"
            [gone] = await again.executor.reconnect(
                SESSION, {"mcpTools": [{**FAR, "serverName": "gone"}]}, []
            )
            assert gone["outcome"] == "failed"
        await far.stop()
        await it.client.close()
        async with running(tmp_path / "third", gates_url=it.url) as third:
            third.grants.put(SESSION, 1, token(SESSION.session_id), "")
            [down] = await third.executor.reconnect(SESSION, snapshot, [declared(far.declaration)])
    assert (down["outcome"], "does not answer" in down["message"]) == ("failed", True)


@pytest.mark.spec("mcp-pool:11.17")
async def test_a_server_that_wants_a_sign_in_reads_as_401(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        far.refuse = 401
        _, diagnostics = await pool.discover(it.document)
        assert diagnostics == [{**FAR, "outcome": "failed", "message": "MCP server returned 401"}]
        with pytest.raises(EffectRaised, match="OAuth"):
            await pool.call(far.declaration, "echo", {"said": "x"})


@pytest.mark.spec("mcp-pool:11.27")
@pytest.mark.parametrize("kind", ["events", "sse"])
async def test_a_cancel_reaches_the_server_and_a_shutdown_does_not(tmp_path, kind):
    async with serving(kind) as far, chained(tmp_path, far.declaration) as (pool, it):
        abort = AbortLatch()
        call = asyncio.create_task(
            pool.call(far.declaration, "wait", {"name": "x"}, abort=abort, effect_id=EFFECT)
        )
        async with asyncio.timeout(BOUND):
            await far.called.wait()
        abort.set(SHUTDOWN)
        with pytest.raises(EffectAborted):
            await call
        # The next owner of the run asks again, and is cancelled by a person.
        second = AbortLatch()
        again = asyncio.create_task(
            pool.call(far.declaration, "wait", {"name": "x"}, abort=second, effect_id=EFFECT)
        )
        await until(lambda: it.core.asked.count(f"/v1/sessions/{SESSION.session_id}") >= 3)
        assert far.cancelled == 0
        second.set(CANCEL)
        with pytest.raises(EffectAborted):
            await again
        await pool.executor.cancel_at_gate(SESSION, EFFECT)
        await until(lambda: far.cancelled)
        assert far.calls == [("wait", "x")]
        assert paths(await seen(it))[-1] == "tool-calls/t%3A0%3Atool%3Ax/cancel"


@pytest.mark.faults
@pytest.mark.spec("mcp-pool:11.28")
@pytest.mark.parametrize("kind", ["json", "sse"])
async def test_a_call_outlives_its_pool_and_the_next_pool_gets_its_outcome(tmp_path, kind):
    async with serving(kind) as far, chained(tmp_path, far.declaration) as (pool, it):
        call = asyncio.create_task(pool.call(far.declaration, "wait", {"name": "x"}, effect_id=EFFECT))
        async with asyncio.timeout(BOUND):
            await far.called.wait()
        call.cancel()
        await asyncio.wait({call})
        await pool.executor.close()
        async with running(tmp_path / "next", gates_url=it.url) as next_pool:
            next_pool.grants.put(SESSION, 1, token(SESSION.session_id), "")
            again = asyncio.create_task(
                next_pool.call(far.declaration, "wait", {"name": "x"}, effect_id=EFFECT)
            )
            await until(lambda: it.core.asked.count(f"/v1/sessions/{SESSION.session_id}") >= 4)
            far.hold.set()
            assert await again == {"kind": "completed", "output": "waited for x"}
        sent = [request for request in await seen(it) if request["path"].endswith("/tool-calls")]
        assert len(sent) == 2
        assert sent[0]["body"] == sent[1]["body"]
        assert {request["key"] for request in sent} == {EFFECT}
        assert far.calls == [("wait", "x")]


@pytest.mark.spec("mcp-pool:11.29")
async def test_a_cancelled_call_is_uncertain_for_ever_and_never_made_again(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        call = asyncio.create_task(pool.call(far.declaration, "wait", {"name": "x"}, effect_id=EFFECT))
        async with asyncio.timeout(BOUND):
            await far.called.wait()
        await pool.executor.cancel_at_gate(SESSION, EFFECT)
        with pytest.raises(
            EffectRaised, match=r"was cancelled\. The call may have run and is not sent again"
        ):
            await call
        with pytest.raises(EffectRaised, match="may have run and is not sent again"):
            await pool.call(far.declaration, "wait", {"name": "x"}, effect_id=EFFECT)
        assert len(far.calls) == 1
        assert it.ready.faults.held == 0


@pytest.mark.spec("mcp-pool:11.30")
async def test_a_stale_run_and_a_refused_token_raise_and_reach_no_server(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        await pool.call(far.declaration, "echo", {"said": "x"})
        it.core.sessions[SESSION.session_id]["epoch"] = 2
        with pytest.raises(EffectRaised, match="answered 409: The run token's lease is over"):
            await pool.call(far.declaration, "echo", {"said": "x"})
        pool.grants.put(SESSION, 2, token(SESSION.session_id, 2, exp=1), "")
        with pytest.raises(EffectRaised, match="refused the run token: The run token has expired"):
            await pool.call(far.declaration, "echo", {"said": "x"})
        assert len(far.calls) == 1


@pytest.mark.spec("mcp-pool:11.31")
async def test_the_newest_token_goes_with_each_request_and_with_the_idle_close(tmp_path):
    limits = dataclasses.replace(LIMITS, idle=0.0)
    async with serving("json") as far, chained(tmp_path, far.declaration, limits=limits) as (pool, it):
        await pool.discover(it.document)
        pool.grants.put(SESSION, 1, token(SESSION.session_id, jti="two"), "")
        await pool.call(far.declaration, "echo", {"said": "x"})
        it.core.sessions[SESSION.session_id]["status"] = "completed"
        assert pool.executor.pool.sweep() == 1
        await until(lambda: not it.ready.pool.connections)
        used = [(request["path"].rpartition("/")[2], request["tokenId"]) for request in await seen(it)]
    assert used == [("connect", "one"), ("list", "one"), ("tool-calls", "two"), ("close", "two")]


@pytest.mark.spec("mcp-pool:11.32")
async def test_without_a_grant_the_gate_lets_nobody_in(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration, grant=False) as (pool, it):
        _, [diagnostic] = await pool.discover(it.document)
        assert diagnostic["outcome"] == "failed"
        assert diagnostic["message"].startswith("The gates service refused the run token: A run token is")
        assert await seen(it) == []


@pytest.mark.spec("mcp-pool:11.33")
@pytest.mark.parametrize(("at", "act"), [("settled", "half"), ("settled", "cut"), ("received", "cut")])
async def test_a_missing_answer_is_lost_and_who_asks_again_gets_the_one_outcome(tmp_path, at, act):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, it):
        await it.client.fault(route="tool-calls", at=at, act=act)
        with pytest.raises(EffectRaised, match="lost before its answer was complete"):
            await pool.call(far.declaration, "echo", {"said": "x"}, effect_id=EFFECT)
        again = await pool.call(far.declaration, "echo", {"said": "x"}, effect_id=EFFECT)
        assert again == {"kind": "completed", "output": {"said": "x"}}
        assert len(far.calls) == 1


@pytest.mark.spec("mcp-pool:11.35")
async def test_of_mixed_content_the_texts_are_joined(tmp_path):
    async with serving("events") as far, chained(tmp_path, far.declaration) as (pool, _):
        assert (await pool.call(far.declaration, "mixed"))["output"] == "a\nb"


@pytest.mark.spec("mcp-pool:11.42")
async def test_a_child_agent_s_server_is_another_connection_than_the_root_s(tmp_path):
    async with (
        serving("json") as far,
        chained(tmp_path, far.declaration, child=far.declaration) as (pool, it),
    ):
        snapshot, diagnostics = await pool.discover(it.document)
        assert [one.get("agentId") for one in diagnostics] == [None, "helper"]
        assert {record.get("agentId") for record in snapshot["mcpTools"]} == {None, "helper"}
        await pool.call(far.declaration, "echo", {"said": "x"}, agent="helper")
        assert (await seen(it))[-1]["body"]["server"] == {"agentId": "helper", **FAR}
        assert len(far.sessions) == 2


async def test_sessions_share_nothing(tmp_path):
    other = dataclasses.replace(SESSION, session_id=OTHER)
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, _):
        pool.grants.put(other, 1, token(OTHER), "")
        await pool.call(far.declaration, "echo", {"said": "a"})
        await pool.call(far.declaration, "echo", {"said": "b"}, session=other)
        assert len(far.sessions) == 2


async def test_many_calls_at_once_are_all_answered(tmp_path):
    async with serving("json") as far, chained(tmp_path, far.declaration) as (pool, _):
        said = [f"n{number}" for number in range(60)]
        outcomes = await asyncio.gather(
            *(pool.call(far.declaration, "echo", {"said": text}) for text in said)
        )
        assert [outcome["output"]["said"] for outcome in outcomes] == said
        assert sorted(text for _, text in far.calls) == sorted(said)
