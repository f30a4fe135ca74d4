"""The pool over gRPC: the handshake, joins, cancels, refusals, and that nothing is started twice."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from services.common.channel import open_channel
from services.common.effect_stream import StreamTimings
from services.common.server import ServerSettings, serve
from services.mcp_pool.connector import NO_GATE
from services.mcp_pool.service import McpPoolService
from tests.mcp_pool.support import (
    BOUND,
    LIMITS,
    SESSION,
    manifest,
    official,
    received,
    remote,
    running,
    stdio,
    until,
)

ACCEPTED = ("x-whippletree-accepted", "1")
Kind = common_pb2


class Served:
    """A service on a socket, its stub and its executor."""

    def __init__(self, harness, service, address):
        self.address = address
        self.harness = harness
        self.service = service
        self.channel = open_channel(address)
        self.stub = mcp_pool_pb2_grpc.McpPoolStub(self.channel)


@asynccontextmanager
async def serving(folder, timings=None, limits=LIMITS):
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700, exist_ok=True)
    async with running(folder, limits) as harness:
        service = McpPoolService(harness.executor, timings)
        settings = ServerSettings(f"unix:{sockets}/pool.sock", None, stop_grace_ms=3000)
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(service, settings, stop, ready.set_result))
        async with asyncio.timeout(BOUND):
            await asyncio.wait({ready, server}, return_when=asyncio.FIRST_COMPLETED)
        served = Served(harness, service, ready.result())
        try:
            yield served
        finally:
            async with asyncio.timeout(BOUND):
                await served.channel.close()
                stop.set()
                await server


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as served:
        yield served


@pytest.fixture
def record(tmp_path):
    return tmp_path / "record"


def reference(effect="e1", epoch=1):
    return common_pb2.EffectRef(
        tenant_id=SESSION.tenant_id, session_id=SESSION.session_id, effect_id=effect, epoch=epoch
    )


def tool_call(declaration, tool, arguments="{}", effect="e1", epoch=1):
    return mcp_pool_pb2.ToolCall(
        effect=reference(effect, epoch),
        server=mcp_pool_pb2.ServerDeclaration(
            capability_id="cap",
            server_name=declaration["name"],
            declaration=common_pb2.Json(text=json.dumps(declaration)),
        ),
        server_tool_name=tool,
        arguments=common_pb2.Json(text=arguments),
    )


def request(*arguments, **named):
    return mcp_pool_pb2.ToolCallRequest(request=tool_call(*arguments, **named))


START = mcp_pool_pb2.ToolCallRequest(start=common_pb2.Start())


def abort(kind):
    return mcp_pool_pb2.ToolCallRequest(abort=common_pb2.Aborted(kind=kind))


async def finish(stream):
    """The result of a stream that was accepted and started."""
    async with asyncio.timeout(BOUND):
        while True:
            reply = await stream.read()
            if reply is grpc.aio.EOF:
                code, details = await stream.code(), await stream.details()
                raise AssertionError(f"no result: {code} {details}")
            if reply.HasField("result"):
                return reply.result


async def begin(served, message):
    """A stream whose request was accepted."""
    stream = served.stub.Call()
    await stream.write(message)
    async with asyncio.timeout(BOUND):
        metadata = await stream.initial_metadata()
    assert ACCEPTED in [tuple(pair) for pair in metadata]
    return stream


async def call(served, *arguments, **named):
    """One call from request to result."""
    stream = await begin(served, request(*arguments, **named))
    await stream.write(START)
    return await finish(stream)


def outcome(result):
    assert result.HasField("outcome"), result
    return json.loads(result.outcome.text)


async def refused(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(BOUND):
            await awaitable
    return caught.value


def says_not_started(error):
    return any(
        key == "x-whippletree-not-started" and value == "1" for key, value in error.trailing_metadata()
    )


async def test_a_real_tool_is_called_after_start(served):
    result = await call(served, official(), "add", '{"a": 1.0, "b": 2}')
    assert outcome(result) == {"kind": "completed", "output": {"total": 3}}


async def test_the_limit_is_named_when_the_call_is_accepted(served):
    stream = await begin(served, request(stdio(), "echo"))
    metadata = dict(await stream.initial_metadata())
    assert int(metadata["x-whippletree-limit-ms"]) == served.harness.executor.limits.call_ms()
    stream.cancel()


async def test_nothing_is_started_before_start(served, record):
    stream = await begin(served, request(stdio(record=record), "echo"))
    stream.cancel()
    await until(lambda: not served.service.in_flight())
    assert not record.exists()
    # The effect was never begun: the same id may be sent again.
    assert outcome(await call(served, stdio(record=record), "echo")) == {"kind": "completed", "output": {}}
    assert len(received(record, "tools/call")) == 1


@pytest.mark.spec("mcp-pool:11.34")
@pytest.mark.parametrize("arguments", ["[1]", "null", "1", '"text"'])
async def test_arguments_that_are_no_object_become_an_empty_one(served, record, arguments):
    await call(served, stdio(record=record), "echo", arguments)
    (sent,) = received(record, "tools/call")
    assert sent["params"]["arguments"] == {}


async def test_a_failure_without_outcome_is_raised(served):
    result = await call(served, stdio(), "error")
    assert result.raised.message == "MCP error -32602: no such thing"


async def test_a_second_stream_joins_the_call_and_both_get_the_outcome(served, record, tmp_path):
    gate = tmp_path / "gate"
    message = request(stdio(record=record), "wait", json.dumps({"file": str(gate)}))
    first = await begin(served, message)
    await first.write(START)
    await until(lambda: received(record, "tools/call"))
    second = await begin(served, message)
    await second.write(START)
    gate.touch()
    results = [await finish(first), await finish(second)]
    assert [outcome(result)["output"] for result in results] == ["waited", "waited"]
    assert len(received(record, "tools/call")) == 1


@pytest.mark.faults
async def test_a_started_call_is_never_started_again_after_its_client_comes_back(served, record, tmp_path):
    gate = tmp_path / "gate"
    message = request(stdio(record=record), "wait", json.dumps({"file": str(gate)}))
    lost = await begin(served, message)
    await lost.write(START)
    await until(lambda: received(record, "tools/call"))
    await served.channel.close()
    served.channel = open_channel(f"unix:{tmp_path}/sockets/pool.sock")
    served.stub = mcp_pool_pb2_grpc.McpPoolStub(served.channel)
    back = await begin(served, message)
    await back.write(START)
    gate.touch()
    assert outcome(await finish(back))["output"] == "waited"
    again = await call(served, stdio(record=record), "wait", json.dumps({"file": str(gate)}))
    assert outcome(again)["output"] == "waited"
    assert len(received(record, "tools/call")) == 1


async def test_an_effect_id_stands_for_one_call_and_belongs_to_the_newest_lease(served):
    await call(served, stdio(), "echo", epoch=5)
    for other in (request(stdio(), "other", epoch=5), request(stdio(), "echo", '{"a":1}', epoch=5)):
        stream = served.stub.Call()
        await stream.write(other)
        error = await refused(finish(stream))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    stream = served.stub.Call()
    await stream.write(request(stdio(), "echo", epoch=4))
    assert (await refused(finish(stream))).code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_cancel_in_band_stops_the_call_and_tells_the_server(served, record):
    stream = await begin(served, request(stdio(record=record), "never"))
    await stream.write(START)
    await until(lambda: received(record, "tools/call"))
    await stream.write(abort(Kind.ABORT_KIND_CANCEL))
    assert (await finish(stream)).aborted.kind == Kind.ABORT_KIND_CANCEL
    assert await until(lambda: received(record, "notifications/cancelled"))


@pytest.mark.parametrize("kind", [Kind.ABORT_KIND_SHUTDOWN, Kind.ABORT_KIND_DEADLINE])
async def test_other_aborts_in_band_let_the_call_finish(served, record, tmp_path, kind):
    gate = tmp_path / "gate"
    message = request(stdio(record=record), "wait", json.dumps({"file": str(gate)}))
    stream = await begin(served, message)
    await stream.write(START)
    await until(lambda: received(record, "tools/call"))
    await stream.write(abort(kind))
    gate.touch()
    assert outcome(await finish(stream))["output"] == "waited"


async def test_cancel_by_effect_id_says_where_the_call_stands(served, record):
    cancel = common_pb2.CancelRequest(effect=reference(), kind=Kind.ABORT_KIND_CANCEL)
    State = common_pb2.CancelReply
    assert (await served.stub.Cancel(cancel)).state == State.STATE_NOT_HERE
    stream = await begin(served, request(stdio(record=record), "never"))
    await stream.write(START)
    await until(lambda: received(record, "tools/call"))
    assert (await served.stub.Cancel(cancel)).state == State.STATE_STOPPING
    assert (await finish(stream)).aborted.kind == Kind.ABORT_KIND_CANCEL
    assert (await served.stub.Cancel(cancel)).state == State.STATE_FINISHED


async def test_discover_and_reconnect_cross_as_documents(served, record):
    server = stdio("bad", "tools=a,b", record=record)
    found = await served.stub.Discover(
        mcp_pool_pb2.DiscoverRequest(
            tenant_id=SESSION.tenant_id,
            session_id=SESSION.session_id,
            root_manifest=common_pb2.Json(text=json.dumps(manifest(server, stdio("worse", "exit=1")))),
            manifest_hash="abc",
        )
    )
    snapshot = json.loads(found.snapshot.text)
    assert snapshot["manifestHash"] == "abc"
    assert [tool["name"] for tool in snapshot["mcpTools"]] == ["bad__a", "bad__b"]
    assert [d["outcome"] for d in json.loads(found.diagnostics.text)] == ["connected", "failed"]
    reconnected = await served.stub.Reconnect(
        mcp_pool_pb2.ReconnectRequest(
            tenant_id=SESSION.tenant_id,
            session_id=SESSION.session_id,
            snapshot=found.snapshot,
            servers=[tool_call(server, "x").server],
        )
    )
    assert json.loads(reconnected.diagnostics.text) == []
    assert len(received(record, "initialize")) == 1


async def test_an_abandoned_discovery_does_not_disturb_the_service(served, tmp_path):
    gate, started = tmp_path / "gate", tmp_path / "started"
    document = manifest(stdio("slow", f"wait={gate}", f"mark={started}"))
    pending = served.stub.Discover(
        mcp_pool_pb2.DiscoverRequest(
            tenant_id=SESSION.tenant_id,
            session_id=SESSION.session_id,
            root_manifest=common_pb2.Json(text=json.dumps(document)),
        )
    )
    await until(started.exists)
    pending.cancel()
    await until(lambda: not served.service.in_flight())
    gate.touch()
    await until(lambda: len(served.harness.executor.pool))


async def test_sessions_are_closed_on_request(served, record):
    await call(served, stdio(record=record), "echo")
    close = mcp_pool_pb2.CloseSessionRequest(tenant_id=SESSION.tenant_id, session_id=SESSION.session_id)
    assert (await served.stub.CloseSession(close)).closed == 1
    assert (await served.stub.CloseSession(close)).closed == 0
    assert served.harness.executor.pool.connections == 0


async def test_grants_are_kept_by_epoch_and_never_shown(served):
    def grant(epoch):
        return mcp_pool_pb2.PutGrantRequest(
            tenant_id=SESSION.tenant_id, session_id=SESSION.session_id, epoch=epoch
        )

    token = (("x-nylorun-run-token", "token-2"),)
    assert (await served.stub.PutGrant(grant(2), metadata=token)).kept
    assert not (await served.stub.PutGrant(grant(1), metadata=(("x-nylorun-run-token", "token-1"),))).kept
    assert served.harness.executor.grants.token(SESSION) == "token-2"
    assert "token-2" not in str(served.service.facts())


async def test_remote_calls_are_raised_with_the_reason(served):
    stream = served.stub.CallRemote(tool_call(remote(), "search"))
    assert (await stream).raised.message == NO_GATE
    assert ACCEPTED in [tuple(pair) for pair in await stream.initial_metadata()]


@pytest.mark.parametrize(
    "message",
    [
        mcp_pool_pb2.ToolCall(),
        tool_call(stdio(), ""),
        tool_call(stdio(), "echo", "{"),
        tool_call(stdio(), "echo", effect=""),
        tool_call(stdio(), "echo", effect="e" * 513),
        tool_call(remote(), "echo"),
        mcp_pool_pb2.ToolCall(effect=reference(), server_tool_name="t"),
    ],
)
async def test_requests_that_are_not_valid_are_refused_before_anything_starts(served, message):
    stream = served.stub.Call()
    await stream.write(mcp_pool_pb2.ToolCallRequest(request=message))
    assert (await refused(finish(stream))).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.harness.executor.pool.connections == 0


async def test_documents_that_are_not_json_are_refused(served):
    ids = {"tenant_id": "t", "session_id": "s"}
    bad = common_pb2.Json(text="{")
    for attempt in (
        served.stub.Discover(mcp_pool_pb2.DiscoverRequest(**ids, root_manifest=bad)),
        served.stub.Reconnect(mcp_pool_pb2.ReconnectRequest(**ids, snapshot=bad)),
        served.stub.Discover(mcp_pool_pb2.DiscoverRequest(root_manifest=common_pb2.Json(text="{}"))),
        served.stub.CallRemote(tool_call(stdio(), "echo")),
        served.stub.CloseSession(mcp_pool_pb2.CloseSessionRequest(tenant_id="t")),
    ):
        assert (await refused(attempt)).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_draining_pool_refuses_new_work_and_finishes_what_runs(served, record, tmp_path):
    gate = tmp_path / "gate"
    stream = await begin(served, request(stdio(record=record), "wait", json.dumps({"file": str(gate)})))
    await stream.write(START)
    await until(lambda: received(record, "tools/call"))
    await served.service.stop_taking()
    ids = {"tenant_id": "t", "session_id": "s"}
    refused_call = served.stub.Call()
    await refused_call.write(request(stdio(), "echo", effect="e2"))
    for attempt in (
        finish(refused_call),
        served.stub.Discover(mcp_pool_pb2.DiscoverRequest(**ids)),
        served.stub.Reconnect(mcp_pool_pb2.ReconnectRequest(**ids)),
        served.stub.CallRemote(tool_call(remote(), "x", effect="e3")),
    ):
        error = await refused(attempt)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert says_not_started(error)
    gate.touch()
    assert outcome(await finish(stream))["output"] == "waited"


async def test_a_caller_that_never_says_start_is_refused_and_nothing_was_done(tmp_path, record):
    async with serving(tmp_path, StreamTimings(start_s=0.1)) as served:
        stream = await begin(served, request(stdio(record=record), "echo"))
        error = await refused(finish(stream))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert says_not_started(error)
        assert not record.exists()


async def test_a_megabyte_goes_there_and_back(served):
    arguments = json.dumps({"text": "z" * 1024 * 1024})
    result = await call(served, stdio(), "echo", arguments)
    assert outcome(result)["output"]["text"] == "z" * 1024 * 1024
