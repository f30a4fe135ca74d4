"""No token of a call stands in a log line, a description of the fleet or an error."""

import io
import json

import grpc
import pytest

from gateway.executors.contract import AbortSignal, ExecutionFailed
from services.common.errors import Refused
from services.common.logs import configure_logging
from tests.common.support import TOKEN, until
from tests.executors.support import (
    ACCEPTED,
    bash_effect,
    model_effect,
    run_of,
    tool_effect,
    world,
)
from tests.leaks.watch import secret

RUN_TOKEN = secret("run-token-that-nobody-may-see")
RENEWED = secret("renewed-token-that-nobody-may-see")
WRONG = secret("fe" * 32)


@pytest.mark.spec("operations:13.41")
async def test_tokens_stay_out_of_logs_fleet_and_errors():
    stream = io.StringIO()
    configure_logging("gateway", "debug", stream)
    said: list[str] = []
    run = run_of(run_token=RUN_TOKEN)
    try:
        async with world(resend_for=0.2) as made:
            tools, model = made.executors.tools, made.executors.model

            async def fault(request, context):
                raise ValueError(f"{context.code()} boom")

            async def refuse(request, context):
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "odd")

            async def lose(request, context):
                await context.send_initial_metadata(ACCEPTED)
                await made.sandbox.started(context, request)
                raise Refused(grpc.StatusCode.UNAVAILABLE, "lost")

            said.append(str(await model.execute(model_effect(), run, AbortSignal(), False)))
            await tools.execute(tool_effect(), run, AbortSignal(), False)
            await made.executors.mcp.put_grant("s", 4, RENEWED, None)
            for behaviour in (fault, refuse):
                made.model.behaviour = made.mcp.behaviour = behaviour
                said.append(str(await model.execute(model_effect("f"), run, AbortSignal(), False)))
                with pytest.raises(ExecutionFailed) as caught:
                    await tools.execute(tool_effect(effect_id="f"), run, AbortSignal(), False)
                said.append(str(caught.value))
            made.sandbox.behaviour = lose
            with pytest.raises(ExecutionFailed) as caught:
                await tools.execute(bash_effect(), run, AbortSignal(), False)
            said.append(str(caught.value))
            await made.ports.stop(made.addresses["mcp-pool"])
            await made.restart(made.mcp, token=WRONG)
            await until(
                lambda: (
                    "bearer" in made.connected.health.services()["mcp-pool"]["replicas"][0].get("problem", "")
                )
            )
            said.append(json.dumps(made.connected.health.services()))
            said.append(repr([replica for one in made.connected.health._sets for replica in one.replicas]))
    finally:
        configure_logging("gateway")
    everything = stream.getvalue() + "".join(said)
    assert "rpc_failed" in everything
    assert "service_refused" in everything
    for token in (TOKEN, WRONG, RUN_TOKEN, RENEWED):
        assert token not in everything
