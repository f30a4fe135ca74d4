"""How large a model call may be: 20 MiB pass on every route, what is over the message limit fails by name."""

import asyncio
import json

import pytest

from gateway.executors.contract import AbortSignal
from gateway.executors.factory import connect
from tests.common.support import BOUND_S, TOKEN, until
from tests.doubles.http import serving
from tests.doubles.model_gate import TENANT, Grant, ModelGateDouble
from tests.doubles.providers import ProviderDouble, openai_text
from tests.executors.support import Target, model_effect, run_of
from tests.model_executor.direct import KEY, config_text
from tests.model_executor.support import document, user
from tests.system.executor_process import direct_settings, executor_process

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

MIB = 1024 * 1024


async def execute(executor, route, call, **run):
    targets = {"model-executor": [Target("m", executor.address)]}
    targets |= {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "sandbox-manager")}
    async with asyncio.timeout(2 * BOUND_S), connect(targets, {"model-executor": TOKEN}) as connected:
        model = connected.executors.model
        await until(lambda: [r.facts.get("route") for r in model._replicas.serving()] == [route])
        answer = await model.execute(model_effect("e", call), run_of(**run), AbortSignal(), False)
        return answer.value


@pytest.mark.parametrize("size", [20, 70])
async def test_a_large_call_reaches_the_gate_or_fails_by_name(tmp_path, size):
    call = document(user("x" * (size * MIB)))
    gate = ModelGateDouble(tokens={"token-1": Grant(epoch=3)})
    async with (
        serving(gate),
        executor_process(tmp_path, NYLORUN_GATES_URL=gate.origin) as executor,
    ):
        outcome = await execute(executor, "gate", call, tenant_id=TENANT)
        if size == 20:
            assert outcome == "hello"
            assert json.loads(gate.model_calls[0].body)["call"] == json.loads(call)
        else:
            assert outcome["code"] == "invalid_request"
            assert "message limit" in outcome["message"]
            assert gate.requests == []


@pytest.mark.parametrize("size", [20, 70])
async def test_a_large_call_reaches_a_provider_or_fails_by_name(tmp_path, size):
    call = document(user("x" * (size * MIB)))
    async with serving(ProviderDouble(replies=[openai_text()])) as provider:
        text = config_text(provider.origin, "openai-completions")
        async with executor_process(tmp_path, **direct_settings(tmp_path, text, KEY=KEY)) as executor:
            outcome = await execute(executor, "direct", call)
            if size == 20:
                assert outcome["output"][0]["text"] == "hello"
                assert provider.bodies[0]["messages"][0]["content"] == "x" * (20 * MIB)
            else:
                assert outcome["code"] == "invalid_request"
                assert provider.requests == []


async def test_a_large_answer_comes_back_whole(tmp_path):
    async with serving(ProviderDouble(replies=[openai_text("y" * (20 * MIB))])) as provider:
        text = config_text(provider.origin, "openai-completions")
        async with executor_process(tmp_path, **direct_settings(tmp_path, text, KEY=KEY)) as executor:
            outcome = await execute(executor, "direct", document(user("hi")))
            assert outcome["output"][0]["text"] == "y" * (20 * MIB)
