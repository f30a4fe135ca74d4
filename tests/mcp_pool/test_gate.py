"""Remote servers through a Tool Gate over a socket: requests to the letter, answers, losses and aborts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket

import pytest
from whippletree.v1 import common_pb2

from services.common.effect_run import CANCEL, SHUTDOWN, AbortLatch, EffectAborted, EffectRaised
from services.mcp_pool.limits import Limits
from services.mcp_pool.session import Session
from tests.doubles.http import serving
from tests.doubles.tool_gate import (
    CALLS,
    CLOSE,
    CONNECT,
    LIST,
    ToolGateDouble,
    error,
    failed,
    ok,
    text,
    tool,
)
from tests.mcp_pool.support import BOUND, LIMITS, SESSION, declared, manifest, remote, running, until

EFFECT = "turn-1:0:tool:a b"
ENCODED = "turn-1%3A0%3Atool%3Aa%20b"
DEADLINE, OWNERSHIP_LOST = common_pb2.ABORT_KIND_DEADLINE, common_pb2.ABORT_KIND_OWNERSHIP_LOST
SERVER = declared(remote())
SERVER_KEY = SESSION.key(SERVER.name)
FAR = {"capabilityId": "cap", "serverName": "far"}


@contextlib.asynccontextmanager
async def gated(folder, double=None, limits=LIMITS, token="token-1"):
    """A pool whose remote servers are a double's. `token` None: the session has no grant."""
    async with (
        serving(double or ToolGateDouble()) as gate,
        running(folder, limits, gates_url=f"{gate.origin}/some/path") as pool,
    ):
        if token is not None:
            pool.grants.put(SESSION, 1, token, "")
        yield pool, gate


def free_origin():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


class Held:
    """A tool that answers when the test says so."""

    def __init__(self):
        self.go, self.ran = asyncio.Event(), 0

    async def __call__(self, body):
        self.ran += 1
        await self.go.wait()
        return ok(text("done"))


async def test_a_server_is_connected_listed_and_called_with_the_contract_s_requests(tmp_path):
    double = ToolGateDouble(tools=[tool("echo", description="says it again")])
    async with gated(tmp_path, double) as (pool, gate):
        snapshot, diagnostics = await pool.discover(manifest(remote()))
        outcome = await pool.call(remote(), "echo", {"a": 1}, effect_id=EFFECT)
        host = gate.origin.removeprefix("http://")
    assert diagnostics == [{**FAR, "outcome": "connected", "message": "Connected"}]
    assert [record["name"] for record in snapshot["mcpTools"]] == ["far__echo"]
    assert outcome == {"kind": "completed", "output": {"a": 1}}
    assert [request.target for request in gate.requests] == [CONNECT, LIST, CALLS, CLOSE]
    common = {
        "host": host,
        "connection": "close",
        "authorization": "Bearer token-1",
        "content-type": "application/json",
    }
    for request in gate.requests:
        keyed = {"idempotency-key": EFFECT} if request.target == CALLS else {}
        assert request.method == "POST"
        assert request.headers == {**common, **keyed, "content-length": str(len(request.body))}
    assert gate.bodies(CONNECT) == gate.bodies(LIST) == gate.bodies(CLOSE) == [{"server": FAR}]
    assert gate.bodies(CALLS) == [{"server": FAR, "effectId": EFFECT, "name": "echo", "arguments": {"a": 1}}]


async def test_pages_are_asked_for_by_cursor(tmp_path):
    double = ToolGateDouble()
    double.acts.extend(
        [ok(None), ok({"tools": [tool("a")], "nextCursor": "two"}), ok({"tools": [tool("b")]})]
    )
    async with gated(tmp_path, double) as (pool, gate):
        snapshot, _ = await pool.discover(manifest(remote()))
    assert [record["serverToolName"] for record in snapshot["mcpTools"]] == ["a", "b"]
    assert gate.bodies(LIST) == [{"server": FAR}, {"server": FAR, "cursor": "two"}]


async def test_live_connections_are_not_connected_again(tmp_path):
    async with gated(tmp_path) as (pool, gate):
        await pool.call(remote(), "echo")
        await pool.call(remote(), "echo")
    assert [request.target for request in gate.requests] == [CONNECT, CALLS, CALLS, CLOSE]


@pytest.mark.spec("mcp-pool:11.16")
async def test_a_refusal_is_reported_with_the_credentials_it_names(tmp_path):
    double = ToolGateDouble()
    double.acts.append(failed("MCP authorization refused: ambiguous", credentialIds=["c1", "c2"]))
    async with gated(tmp_path, double) as (pool, _):
        _, diagnostics = await pool.discover(manifest(remote()))
    assert diagnostics == [
        {
            **FAR,
            "outcome": "refused",
            "message": "MCP authorization refused: ambiguous",
            "credentialIds": ["c1", "c2"],
        }
    ]


@pytest.mark.spec("mcp-pool:11.17")
async def test_the_code_401_reads_as_the_server_s_own(tmp_path):
    double = ToolGateDouble()
    double.acts.append(failed("go away", code=401))
    async with gated(tmp_path, double) as (pool, _):
        _, diagnostics = await pool.discover(manifest(remote()))
    assert diagnostics == [{**FAR, "outcome": "failed", "message": "MCP server returned 401"}]


async def test_a_refused_token_does_not_read_as_the_server_s_401(tmp_path):
    double = ToolGateDouble()
    double.acts.append(error(401, "gate_unauthorized", "it has expired"))
    async with gated(tmp_path, double) as (pool, _):
        _, diagnostics = await pool.discover(manifest(remote()))
    message = "The gates service refused the run token: it has expired"
    assert diagnostics == [{**FAR, "outcome": "failed", "message": message}]


@pytest.mark.spec("mcp-pool:11.27")
async def test_a_person_s_cancel_drops_the_request_and_a_shutdown_does_too(tmp_path):
    for kind in (CANCEL, SHUTDOWN):
        held, abort = Held(), AbortLatch()
        async with gated(tmp_path, ToolGateDouble(call=held)) as (pool, gate):
            call = asyncio.create_task(pool.call(remote(), "wait", abort=abort, effect_id=EFFECT))
            async with asyncio.timeout(BOUND):
                await gate.arrived.wait()
                abort.set(kind)
                with pytest.raises(EffectAborted) as stopped:
                    await call
                await gate.dropped.wait()
            assert stopped.value.kind == kind
            # Whoever asked for the cancel has the gate stop the call as well; see the service's tests.
            assert [request.target for request in gate.requests] == [CONNECT, CALLS]


@pytest.mark.spec("mcp-pool:11.27")
async def test_the_gate_is_asked_to_cancel_under_the_encoded_effect_id(tmp_path):
    async with gated(tmp_path) as (pool, gate):
        await pool.executor.cancel_at_gate(SESSION, EFFECT)
        [request] = gate.requests
    assert request.target == f"{CALLS}/{ENCODED}/cancel"
    assert request.headers["content-length"] == "0"
    assert request.headers["authorization"] == "Bearer token-1"
    assert request.body == b""


@pytest.mark.parametrize("kind", [DEADLINE, OWNERSHIP_LOST])
async def test_a_deadline_and_a_lost_lease_let_the_call_finish(tmp_path, kind):
    held, abort = Held(), AbortLatch()
    async with gated(tmp_path, ToolGateDouble(call=held)) as (pool, gate):
        call = asyncio.create_task(pool.call(remote(), "wait", abort=abort))
        async with asyncio.timeout(BOUND):
            await gate.arrived.wait()
            abort.set(kind)
            held.go.set()
            assert (await call)["output"] == "done"


@pytest.mark.parametrize("kind", [CANCEL, SHUTDOWN])
async def test_nothing_is_sent_for_a_call_that_was_aborted_before(tmp_path, kind):
    abort = AbortLatch()
    abort.set(kind)
    async with gated(tmp_path) as (pool, gate):
        with pytest.raises(EffectAborted):
            await pool.call(remote(), "echo", abort=abort)
        assert gate.requests == []


async def test_an_abort_while_the_server_is_opened_ends_the_wait_and_no_call_is_made(tmp_path):
    abort, double = AbortLatch(), ToolGateDouble()
    double.acts.append("silent")
    async with gated(tmp_path, double) as (pool, gate):
        call = asyncio.create_task(pool.call(remote(), "echo", abort=abort))
        await until(lambda: gate.requests)
        abort.set(SHUTDOWN)
        with pytest.raises(EffectAborted):
            await call
        assert gate.on(CALLS) == []


@pytest.mark.spec("mcp-pool:11.28")
async def test_a_call_that_is_sent_again_has_the_same_bytes_and_key(tmp_path):
    async with gated(tmp_path / "a") as (pool, gate):
        await pool.call(remote(), "echo", {"b": 1, "a": [None, 1.5]}, effect_id=EFFECT)
        [first] = gate.on(CALLS)
    async with gated(tmp_path / "b", token="a newer token") as (pool, gate):
        await pool.call(remote(), "echo", {"b": 1, "a": [None, 1.5]}, effect_id=EFFECT)
        [again] = gate.on(CALLS)
    assert (first.body, first.headers["idempotency-key"]) == (again.body, again.headers["idempotency-key"])


@pytest.mark.spec("mcp-pool:11.29")
@pytest.mark.parametrize(
    "members", [{}, {"failure": {"code": "mcp.error", "message": "m", "sent": True, "retryable": False}}]
)
async def test_an_uncertain_answer_raises_and_nothing_is_sent_again(tmp_path, members):
    double = ToolGateDouble()
    double.acts.extend([ok(None), failed("Nobody knows.", uncertain=True, **members)])
    async with gated(tmp_path, double) as (pool, gate):
        with pytest.raises(EffectRaised, match="may have run and is not sent again"):
            await pool.call(remote(), "echo")
        assert len(gate.on(CALLS)) == 1


async def test_a_failure_that_the_gate_codes_is_the_outcome(tmp_path):
    coded = {"code": "mcp.status", "message": "busy", "sent": True, "retryable": True, "server": "far"}
    double = ToolGateDouble()
    double.acts.extend([ok(None), failed("The server answered 503.", code=503, failure=coded)])
    async with gated(tmp_path, double) as (pool, _):
        outcome = await pool.call(remote(), "echo")
    assert outcome == {
        "kind": "failed",
        "code": "mcp.status",
        "message": "busy",
        "retryable": True,
        "server": "far",
    }


async def test_a_lost_call_stays_uncertain_even_when_the_gate_codes_it(tmp_path):
    coded = {"code": "mcp.lost", "message": "gone", "sent": True, "retryable": True}
    double = ToolGateDouble()
    double.acts.extend([ok(None), failed("No answer came.", failure=coded)])
    async with gated(tmp_path, double) as (pool, _):
        with pytest.raises(EffectRaised, match=r"No answer came\."):
            await pool.call(remote(), "echo")


@pytest.mark.spec("mcp-pool:11.30")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (error(409, "run_stale", "the lease is over"), "answered 409: the lease is over"),
        (error(401, "gate_unauthorized", "expired"), "refused the run token: expired"),
        (error(409, "gate_conflict", "another call"), "answered 409: another call"),
        (error(400, "invalid_request", "no name"), "answered 400: no name"),
        ((500, b"<html>"), "answered 500"),
        ((307, {}), "answered 307"),
        ((200, b"{"), "not what a Tool Gate answers"),
        ((200, {"result": 1}), "not what a Tool Gate answers"),
        ((200, {"ok": False}), "and not why"),
        (failed("MCP error -32602: no such tool", code=-32602), "MCP error -32602: no such tool"),
        (ok({"content": [{"type": "video"}]}), "not a content part that MCP knows"),
        (ok(None), "result is not an object"),
    ],
)
async def test_every_other_answer_raises_and_is_not_asked_for_again(tmp_path, answer, says):
    double = ToolGateDouble()
    double.acts.extend([ok(None), answer])
    async with gated(tmp_path, double) as (pool, gate):
        with pytest.raises(EffectRaised) as raised:
            await pool.call(remote(), "echo")
        assert says in str(raised.value)
        [request] = gate.on(CALLS)
        assert request.headers["authorization"] == "Bearer token-1"


@pytest.mark.spec("mcp-pool:11.31")
async def test_a_renewed_token_goes_with_the_next_call_and_the_last_one_with_the_close(tmp_path):
    limits = dataclasses.replace(LIMITS, idle=0.0)
    async with gated(tmp_path, limits=limits) as (pool, gate):
        await pool.discover(manifest(remote()))
        pool.grants.put(SESSION, 1, "token-2", "")
        await pool.call(remote(), "echo")
        pool.grants.put(SESSION, 2, "token-3", "")
        assert pool.executor.pool.sweep() == 1
        await until(lambda: gate.on(CLOSE))
    sent = [(request.target, request.headers["authorization"]) for request in gate.requests]
    assert sent == [
        (CONNECT, "Bearer token-1"),
        (LIST, "Bearer token-1"),
        (CALLS, "Bearer token-2"),
        (CLOSE, "Bearer token-3"),
    ]


@pytest.mark.spec("mcp-pool:11.32")
async def test_without_a_grant_the_body_names_the_session_and_no_credential_is_sent(tmp_path):
    double = ToolGateDouble()
    double.acts.append(error(401, "gate_unauthorized", "no token"))
    async with gated(tmp_path, double, token=None) as (pool, gate):
        with pytest.raises(EffectRaised, match="refused the run token"):
            await pool.call(remote(), "echo")
        [request] = gate.requests
    assert "authorization" not in request.headers
    assert json.loads(request.body) == {"server": {"sessionId": SESSION.session_id, **FAR}}


@pytest.mark.spec("mcp-pool:11.33")
@pytest.mark.parametrize("act", ["half", "reset"])
async def test_a_missing_or_half_answer_counts_as_lost(tmp_path, act):
    double = ToolGateDouble()
    double.acts.extend([ok(None), act])
    async with gated(tmp_path, double) as (pool, gate):
        with pytest.raises(EffectRaised, match="lost before its answer was complete: what was asked may"):
            await pool.call(remote(), "echo")
        assert len(gate.on(CALLS)) == 1


@pytest.mark.spec("mcp-pool:11.33")
async def test_a_request_that_was_not_taken_whole_counts_as_unreachable(tmp_path):
    double = ToolGateDouble()
    async with gated(tmp_path, double) as (pool, gate):
        await pool.call(remote(), "echo")
        double.acts.append("reset early")
        with pytest.raises(EffectRaised, match=f"unreachable at {gate.origin}"):
            await pool.call(remote(), "echo", {"large": "x" * 16_000_000})


@pytest.mark.spec("mcp-pool:11.33")
async def test_a_closed_port_raises_in_a_call_and_fails_the_server_in_discovery(tmp_path):
    origin = free_origin()
    async with running(tmp_path, gates_url=origin) as pool:
        with pytest.raises(EffectRaised, match=f"unreachable at {origin}"):
            await pool.call(remote(), "echo")
        _, diagnostics = await pool.discover(manifest(remote()))
    message = f"The gates service is unreachable at {origin}."
    assert diagnostics == [{**FAR, "outcome": "failed", "message": message}]


async def test_a_silent_gate_ends_a_call_after_the_silence_limit(tmp_path):
    double = ToolGateDouble()
    double.acts.extend([ok(None), "silent"])
    limits = dataclasses.replace(LIMITS, gate_silence=0.2)
    async with gated(tmp_path, double, limits) as (pool, gate):
        with pytest.raises(EffectRaised, match=r"said nothing for 0\.2 s: what was asked may"):
            await pool.call(remote(), "echo")
        assert len(gate.on(CALLS)) == 1


async def test_an_answer_above_the_limit_fails_its_call(tmp_path, monkeypatch):
    monkeypatch.setattr("services.mcp_pool.gate.client.GATE_ANSWER_BYTES", 1000)
    double = ToolGateDouble()
    double.acts.extend([ok(None), ok(text("x" * 1000))])
    async with gated(tmp_path, double) as (pool, _):
        with pytest.raises(EffectRaised, match="larger than 1000 bytes"):
            await pool.call(remote(), "echo")


@pytest.mark.spec("mcp-pool:11.42")
async def test_a_child_agent_s_server_is_named_with_its_agent(tmp_path):
    async with gated(tmp_path) as (pool, gate):
        await pool.call(remote(), "echo", agent="child")
    assert [body["server"] for body in gate.bodies(CALLS)] == [{"agentId": "child", **FAR}]


async def test_sessions_and_agents_have_connections_and_tokens_of_their_own(tmp_path):
    other = Session("acme", "session-2")
    async with gated(tmp_path) as (pool, gate):
        pool.grants.put(other, 1, "token of 2", "")
        await pool.call(remote(), "echo")
        await pool.call(remote(), "echo", session=other)
        assert await pool.executor.close_session(other) == 1
    sent = [(request.target, request.headers["authorization"]) for request in gate.requests]
    assert sent[-2:] == [(CLOSE, "Bearer token of 2"), (CLOSE, "Bearer token-1")]
    assert len(gate.on(CONNECT)) == 2


async def test_a_second_connection_to_the_same_server_closes_nothing_at_the_gate(tmp_path):
    async with gated(tmp_path) as (pool, gate):
        await pool.call(remote(), "echo")
        second = await pool.executor.pool.open(SERVER_KEY, SERVER)
        assert pool.executor.pool.put(SERVER_KEY, second)  # the old one is kept
        await pool.call(remote(), "echo")
        assert gate.on(CLOSE) == []
    assert len(gate.on(CLOSE)) == 1


async def test_a_close_that_the_gate_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("services.common.gate_http.QUICK_S", 0.1)
    double = ToolGateDouble()
    async with gated(tmp_path, double) as (pool, gate):
        await pool.call(remote(), "echo")
        double.acts.append("silent")
        assert await pool.executor.close_session(SESSION) == 1
        assert len(gate.on(CLOSE)) == 1


async def test_the_limit_of_a_remote_call_is_above_the_gate_s_own(tmp_path):
    limits = Limits()
    assert limits.remote_call_ms() > 660_000 > limits.call_ms()
