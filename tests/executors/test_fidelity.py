"""Numbers, key order and half surrogate pairs survive the way from a script to core's frame and back."""

import asyncio
import json

import pytest

from gateway.executors.contract import AbortSignal
from gateway.executors.factory import connect
from protocol.canonical import canonical_request
from protocol.jsjson import dumps, loads
from services.model_executor.executor import ModelExecutor
from services.model_executor.routes import ScriptedRoute
from services.model_executor.script import read_script
from services.model_executor.service import ModelExecutorService
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import QUICK, Target, model_effect, ports, run_of

SCRIPT = (
    '{"answers":[{"answer":{"output":[{"type":"tool-call","id":"1","name":"t","args":'
    '{"b":12345678901234567890,"a":5.0,"2":1,"1":"\\ud800"}}],"usage":{"costUsd":2e-05}}}]}'
)
WRITTEN = (
    '{"output":[{"type":"tool-call","id":"1","name":"t","args":'
    '{"1":"\\ud800","2":1,"b":12345678901234567000,"a":5}}],"usage":{"costUsd":0.00002}}'
)
CANONICAL = (
    '{"output":[{"args":{"1":"\\ud800","2":1,"a":5,"b":12345678901234567000},"id":"1","name":"t",'
    '"type":"tool-call"}],"usage":{"costUsd":0.00002}}'
)


@pytest.mark.spec("model-executor:15.46", "model-executor:15.47")
async def test_an_outcome_reaches_core_as_javascript_would_have_written_it():
    service = ModelExecutorService(ModelExecutor(ScriptedRoute(read_script(SCRIPT))))
    async with ports() as made:
        targets = {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "sandbox-manager")}
        targets["model-executor"] = [Target("m", await made.start(service))]
        async with connect(targets, {"model-executor": TOKEN}, timings=QUICK) as connected:
            await until(lambda: "model-executor" not in connected.health.missing())
            call = '{"executionId":"x","prompt":[],"tools":[],"odd":"\\ud800"}'
            async with asyncio.timeout(BOUND_S):
                outcome = await connected.executors.model.execute(
                    model_effect(call=call), run_of(), AbortSignal(), False
                )
    assert dumps(outcome.value, plain=outcome.plain) == WRITTEN
    # What goes into the transcript is hashed in later requests.
    assert canonical_request(loads(WRITTEN)).decode() == CANONICAL
    assert json.loads(WRITTEN)["usage"]["costUsd"] == 0.00002
