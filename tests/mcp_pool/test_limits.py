"""The limits of the pool as people and callers meet them: diagnostics, refusals, queues."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import grpc
import pytest

from services.common.effect_run import AbortLatch
from services.common.effect_stream import StreamTimings
from services.mcp_pool.executor import CallRefused
from services.mcp_pool.session import Session
from tests.executors.support import QUICK
from tests.mcp_pool.replicas import gateway, run_with
from tests.mcp_pool.support import BOUND, LIMITS, manifest, received, running, stdio, until
from tests.mcp_pool.test_service import (
    START,
    begin,
    call,
    finish,
    outcome,
    refused,
    request,
    says_not_started,
    serving,
)

SMALL = dataclasses.replace(LIMITS, connections=2, per_session=2)
OTHER = Session("acme", "session-2")


async def test_the_servers_of_a_session_over_its_limit_are_failed_and_the_setting_is_named(tmp_path):
    async with running(tmp_path, SMALL) as harness:
        servers = [stdio(name) for name in ("one", "two", "three")]
        snapshot, diagnostics = await harness.discover(manifest(*servers))
        assert [diagnostic["outcome"] for diagnostic in diagnostics] == ["connected", "connected", "failed"]
        assert "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION=2" in diagnostics[2]["message"]
        assert [tool["serverName"] for tool in snapshot["mcpTools"]] == ["one", "two"]
        again = await harness.discover(manifest(*servers), session=OTHER)
        assert [diagnostic["outcome"] for diagnostic in again[1]] == ["connected", "connected", "failed"]
        assert harness.executor.pool.seats == 2


async def test_a_call_is_refused_while_every_connection_is_in_use_and_taken_afterwards(tmp_path):
    async with running(tmp_path, dataclasses.replace(LIMITS, connections=1)) as harness:
        file = tmp_path / "go"
        busy = asyncio.create_task(harness.call(stdio(), "wait", {"file": str(file)}))
        await until(lambda: len(harness.executor.pool) == 1)
        with pytest.raises(CallRefused, match="WHIPPLETREE_MCP_MAX_CONNECTIONS=1"):
            await harness.call(stdio(), "echo", session=OTHER)
        file.touch()
        await busy
        assert (await harness.call(stdio(), "echo", {"a": 1}, session=OTHER))["output"] == {"a": 1}


async def test_over_grpc_the_refusal_says_that_nothing_was_started(tmp_path):
    async with serving(tmp_path, limits=dataclasses.replace(LIMITS, per_session=1)) as served:
        file, record = tmp_path / "go", tmp_path / "record"
        busy = await begin(served, request(stdio("one"), "wait", json.dumps({"file": str(file)})))
        await busy.write(START)
        await until(lambda: len(served.harness.executor.pool) == 1)

        async def other():
            stream = served.stub.Call()
            await stream.write(request(stdio("two", record=record), "echo", effect="e2"))
            return await stream.read()

        error = await refused(other())
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert says_not_started(error)
        assert "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION=1" in error.details()
        assert received(record) == []
        file.touch()
        outcome(await finish(busy))
        outcome(await call(served, stdio("two", record=record), "echo", effect="e2"))
        assert len(received(record, "tools/call")) == 1


async def test_calls_over_the_limit_of_a_connection_are_told_their_place_and_take_their_turn(tmp_path):
    limits = dataclasses.replace(LIMITS, calls=2)
    async with serving(tmp_path, StreamTimings(first_word_s=0.01), limits=limits) as served:
        file, record = tmp_path / "go", tmp_path / "record"
        server, waits = stdio(record=record), json.dumps({"file": str(file)})
        running_calls = [await begin(served, request(server, "wait", waits, effect=f"r{n}")) for n in "ab"]
        for stream in running_calls:
            await stream.write(START)
        await until(lambda: len(received(record, "tools/call")) == 2)
        third = served.stub.Call()
        await third.write(request(server, "echo", '{"n":3}', effect="e3"))
        async with asyncio.timeout(BOUND):
            assert (await third.read()).queued.position == 2
        file.touch()
        for stream in running_calls:
            outcome(await finish(stream))
        async with asyncio.timeout(BOUND):
            while not (reply := await third.read()).HasField("accepted"):
                assert reply.HasField("queued")
        assert len(received(record, "tools/call")) == 2
        await third.write(START)
        assert outcome(await finish(third))["output"] == {"n": 3}


async def test_a_refused_call_is_made_again_by_the_gateway_until_there_is_room(tmp_path):
    """Ten seconds in all; what happens after them is the executors' test."""
    limits = dataclasses.replace(LIMITS, connections=1)
    timings = dataclasses.replace(QUICK, resend_for=20.0)
    async with serving(tmp_path, limits=limits) as served, gateway(served.address, timings=timings) as made:
        file, record = tmp_path / "go", tmp_path / "record"
        busy = asyncio.create_task(
            served.harness.call(stdio("busy"), "wait", {"file": str(file)}, session=OTHER)
        )
        await until(lambda: len(served.harness.executor.pool) == 1)
        await made.serving(1)
        call = asyncio.create_task(made.call(run_with("s", stdio("srv", record=record)), "echo"))
        await until(lambda: served.service.work.counts.get("mcp.refused", 0) >= 2)
        assert received(record) == []
        file.touch()
        assert (await call)["kind"] == "completed"
        await busy
        assert len(received(record, "tools/call")) == 1


async def test_a_thousand_calls_over_fifty_connections_all_finish(tmp_path):
    async with running(tmp_path) as harness:
        outcomes = await asyncio.gather(
            *(
                harness.call(stdio(), "echo", {"n": n}, session=Session("t", f"s{n % 50}"))
                for n in range(1000)
            )
        )
        assert [outcome["output"]["n"] for outcome in outcomes] == list(range(1000))
        assert len(harness.executor.pool) == 50


async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_leaves_the_line(tmp_path):
    async with running(tmp_path, dataclasses.replace(LIMITS, calls=1)) as harness:
        file, record, abort = tmp_path / "go", tmp_path / "record", AbortLatch()
        server = stdio(record=record)
        first = asyncio.create_task(harness.call(server, "wait", {"file": str(file)}))
        await until(lambda: received(record, "tools/call"))
        second = asyncio.create_task(harness.call(server, "echo", abort=abort))
        third = asyncio.create_task(harness.call(server, "echo", {"n": 3}))
        await asyncio.sleep(0)
        abort.set(1)
        file.touch()
        done, _ = await asyncio.wait([first, second, third], timeout=BOUND)
        assert len(done) == 3
        assert second.exception() is not None
        assert third.result()["output"] == {"n": 3}
