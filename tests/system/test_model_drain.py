"""SIGTERM to a model-executor with calls in flight (model-executor 13.7, operations 12.10)."""

import asyncio
import contextlib

import grpc
import pytest

from services.common.metadata import NOT_STARTED, find
from tests.common.support import BOUND_S, until
from tests.doubles.http import serving
from tests.doubles.model_gate import TENANT, Grant, ModelGateDouble
from tests.doubles.providers import ProviderDouble, held, openai_text
from tests.model_executor.direct import HI, KEY, config_text
from tests.system.executor_process import direct_settings, executor_process, request_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


async def refused_from_now_on(executor):
    """New calls are refused as not started: draining has begun."""
    async with asyncio.timeout(BOUND_S):
        number = 0
        while True:
            number += 1
            try:
                await executor.call(request_for("{}", f"probe{number}"))
            except grpc.aio.AioRpcError as error:
                if find(error.trailing_metadata(), NOT_STARTED) != "1":
                    raise
                return


@contextlib.asynccontextmanager
async def direct(folder, go, **settings):
    async with serving(ProviderDouble(replies=[held(go, openai_text())])) as provider:
        text = config_text(provider.origin, "openai-completions")
        given = direct_settings(folder, text, KEY=KEY, **settings)
        async with executor_process(folder, **given) as executor:
            running = asyncio.ensure_future(executor.call(request_for(HI)))
            await provider.arrived.wait()
            yield provider, executor, running, given


async def test_a_draining_executor_refuses_what_is_new_and_finishes_what_runs(tmp_path):
    go = asyncio.Event()
    async with direct(tmp_path, go) as (provider, executor, running, _):
        executor.terminate()
        await refused_from_now_on(executor)
        again = asyncio.ensure_future(executor.call(request_for(HI, rejoin=True)))
        await until(lambda: any("effect_joined" in line for line in executor.lines))
        go.set()
        outcome = await running
        assert outcome["output"][0]["text"] == "hello"
        assert await again == outcome
        assert await executor.ended() == 0
        assert len(provider.requests) == 1


@pytest.mark.faults
async def test_a_direct_call_past_the_stop_grace_is_stored_as_given_up(tmp_path):
    go = asyncio.Event()
    async with direct(tmp_path, go, NYLORUN_STOP_GRACE_MS="900") as (provider, executor, running, given):
        executor.terminate()
        with pytest.raises(grpc.aio.AioRpcError):
            await running
        assert await executor.ended() == 0
        await until(provider.gone.is_set)
        async with executor_process(tmp_path, **given) as second:
            outcome = await second.call(request_for(HI, rejoin=True))
        assert (outcome["code"], outcome["retryable"]) == ("transient", True)
        assert "stopped during the call" in outcome["message"]
        assert len(provider.requests) == 1


@pytest.mark.faults
async def test_a_gate_call_past_the_stop_grace_stays_at_the_gate_for_the_next_sender(tmp_path):
    go = asyncio.Event()

    async def provider(body):
        await go.wait()
        return "hello"

    gate = ModelGateDouble(provider=provider, tokens={"token-1": Grant(session="s", turn="turn")})
    async with serving(gate):
        given = {"NYLORUN_GATES_URL": gate.origin, "NYLORUN_STOP_GRACE_MS": "900"}
        async with executor_process(tmp_path, **given) as first:
            request = request_for(HI, tenant_id=TENANT)
            running = asyncio.ensure_future(first.call(request, "token-1"))
            await gate.arrived.wait()
            first.terminate()
            with pytest.raises(grpc.aio.AioRpcError):
                await running
            assert await first.ended() == 0
        async with executor_process(tmp_path, **given) as second:
            joined = asyncio.ensure_future(second.call(request, "token-1"))
            await until(lambda: len(gate.model_calls) == 2)
            go.set()
            assert await joined == "hello"
    assert gate.provider_calls == 1
    assert gate.cancels == []
