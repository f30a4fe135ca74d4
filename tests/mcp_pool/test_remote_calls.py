"""Calls of remote tools over gRPC: tokens, cancels that reach the gate, and breaks that do not."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from services.mcp_pool.service import McpPoolService
from tests.common.support import served
from tests.doubles.http import serving
from tests.doubles.tool_gate import CALLS, CONNECT, ToolGateDouble, ok, text
from tests.mcp_pool.support import BOUND, SESSION, manifest, remote, running, until

CANCEL, SHUTDOWN = common_pb2.ABORT_KIND_CANCEL, common_pb2.ABORT_KIND_SHUTDOWN
DEADLINE = common_pb2.ABORT_KIND_DEADLINE
NAMED = {"tenant_id": SESSION.tenant_id, "session_id": SESSION.session_id}


class Made:
    def __init__(self, pool, gate, port, service):
        self.pool, self.gate, self.service = pool, gate, service
        self.stub = mcp_pool_pb2_grpc.McpPoolStub(port.channel)
        self.bearer = tuple(port.metadata)

    def metadata(self, token):
        return (*self.bearer, *((("x-nylorun-run-token", token),) if token else ()))

    def call(self, tool="echo", arguments="{}", effect="e:1", epoch=1, token="token-1"):
        message = mcp_pool_pb2.ToolCall(
            effect=common_pb2.EffectRef(**NAMED, effect_id=effect, epoch=epoch),
            server=mcp_pool_pb2.ServerDeclaration(
                capability_id="cap",
                server_name="far",
                declaration=common_pb2.Json(text=json.dumps(remote())),
            ),
            server_tool_name=tool,
            arguments=common_pb2.Json(text=arguments),
        )
        return self.stub.CallRemote(message, metadata=self.metadata(token))

    async def cancel(self, kind, effect="e:1", token="token-1"):
        request = common_pb2.CancelRequest(
            effect=common_pb2.EffectRef(**NAMED, effect_id=effect, epoch=1), kind=kind
        )
        async with asyncio.timeout(BOUND):
            return (await self.stub.Cancel(request, metadata=self.metadata(token))).state

    async def discover(self, epoch, token):
        request = mcp_pool_pb2.DiscoverRequest(
            **NAMED, root_manifest=common_pb2.Json(text=json.dumps(manifest(remote()))), epoch=epoch
        )
        async with asyncio.timeout(BOUND):
            return await self.stub.Discover(request, metadata=self.metadata(token))

    async def reconnect(self, epoch, token):
        record = {"capabilityId": "cap", "serverName": "far"}
        request = mcp_pool_pb2.ReconnectRequest(
            **NAMED,
            snapshot=common_pb2.Json(text=json.dumps({"mcpTools": [record]})),
            servers=[
                mcp_pool_pb2.ServerDeclaration(
                    capability_id="cap",
                    server_name="far",
                    declaration=common_pb2.Json(text=json.dumps(remote())),
                )
            ],
            epoch=epoch,
        )
        async with asyncio.timeout(BOUND):
            return await self.stub.Reconnect(request, metadata=self.metadata(token))

    def tokens(self, path):
        return [request.headers.get("authorization") for request in self.gate.on(path)]


@contextlib.asynccontextmanager
async def made(folder, double=None):
    async with (
        serving(double or ToolGateDouble()) as gate,
        running(folder, gates_url=gate.origin) as pool,
    ):
        service = McpPoolService(pool.executor)
        async with served(service) as port:
            yield Made(pool, gate, port, service)


class Held:
    def __init__(self):
        self.go = asyncio.Event()

    async def __call__(self, body):
        await self.go.wait()
        return ok(text("done"))


async def test_an_outcome_crosses_and_the_call_says_that_it_was_accepted_and_how_long_it_may_take(tmp_path):
    async with made(tmp_path) as it:
        call = it.call(arguments='{"a": 1}')
        assert json.loads((await call).outcome.text) == {"kind": "completed", "output": {"a": 1}}
        metadata = dict(await call.initial_metadata())
        assert metadata["x-whippletree-accepted"] == "1"
        assert int(metadata["x-whippletree-limit-ms"]) == it.pool.executor.limits.remote_call_ms()
        assert it.gate.on(CALLS)[0].headers["idempotency-key"] == "e:1"


@pytest.mark.spec("mcp-pool:11.27")
async def test_a_cancel_ends_the_waiting_and_then_the_call_at_the_gate(tmp_path):
    async with made(tmp_path, ToolGateDouble(call=Held())) as it:
        call = it.call()
        async with asyncio.timeout(BOUND):
            await it.gate.arrived.wait()
            assert await it.cancel(CANCEL) == common_pb2.CancelReply.STATE_STOPPING
            assert (await call).aborted.kind == CANCEL
            await it.gate.dropped.wait()
        assert [request.target for request in it.gate.requests] == [CONNECT, CALLS, f"{CALLS}/e%3A1/cancel"]
        assert not it.service.in_flight()


@pytest.mark.spec("mcp-pool:11.27")
async def test_a_shutdown_ends_the_waiting_alone(tmp_path):
    async with made(tmp_path, ToolGateDouble(call=Held())) as it:
        call = it.call()
        async with asyncio.timeout(BOUND):
            await it.gate.arrived.wait()
            assert await it.cancel(SHUTDOWN) == common_pb2.CancelReply.STATE_STOPPING
            assert (await call).aborted.kind == SHUTDOWN
            await it.gate.dropped.wait()
        assert [request.target for request in it.gate.requests] == [CONNECT, CALLS]


async def test_a_deadline_lets_the_call_finish(tmp_path):
    held = Held()
    async with made(tmp_path, ToolGateDouble(call=held)) as it:
        call = it.call()
        async with asyncio.timeout(BOUND):
            await it.gate.arrived.wait()
            await it.cancel(DEADLINE)
            held.go.set()
            assert json.loads((await call).outcome.text)["output"] == "done"


async def test_a_cancel_of_a_call_that_is_not_here_goes_to_the_gate_with_the_given_token(tmp_path):
    async with made(tmp_path) as it:
        assert await it.cancel(CANCEL, "other", "token-9") == common_pb2.CancelReply.STATE_NOT_HERE
        assert it.tokens(f"{CALLS}/other/cancel") == ["Bearer token-9"]


async def test_a_call_whose_caller_goes_away_is_dropped_here_and_left_to_the_gate(tmp_path):
    async with made(tmp_path, ToolGateDouble(call=Held())) as it:
        call = it.call()
        async with asyncio.timeout(BOUND):
            await it.gate.arrived.wait()
            call.cancel()
            await it.gate.dropped.wait()
        await until(lambda: not it.service.in_flight())
        assert [request.target for request in it.gate.requests] == [CONNECT, CALLS]


@pytest.mark.spec("mcp-pool:11.30")
async def test_a_refusal_is_raised_with_the_gate_s_reason(tmp_path):
    double = ToolGateDouble()
    double.acts.extend([ok(None), (409, {"error": {"code": "run_stale", "message": "the lease is over"}})])
    async with made(tmp_path, double) as it:
        raised = (await it.call()).raised.message
        assert raised == "The gates service answered 409: the lease is over"


async def test_a_reason_with_half_a_surrogate_pair_crosses_all_the_same(tmp_path):
    double = ToolGateDouble()
    double.acts.extend([ok(None), (200, rb'{"ok":false,"error":{"message":"\ud800 broke"}}')])
    async with made(tmp_path, double) as it:
        assert (await it.call()).raised.message == "? broke"


@pytest.mark.spec("mcp-pool:11.31")
async def test_a_token_of_a_newer_run_replaces_the_old_one_in_every_kind_of_request(tmp_path):
    async with made(tmp_path) as it:
        await it.discover(1, "token-1")
        await it.discover(2, "token-2")
        await it.call(epoch=2, token="token-2b")
        assert it.tokens(CALLS) == ["Bearer token-2b"]
        await it.pool.executor.close_session(SESSION)
        await it.reconnect(3, "token-3")
        assert it.tokens(CONNECT) == ["Bearer token-1", "Bearer token-2", "Bearer token-3"]
        await it.pool.executor.close_session(SESSION)
        await it.reconnect(2, "a straggler's")
        assert it.tokens(CONNECT)[-1] == "Bearer token-3"
