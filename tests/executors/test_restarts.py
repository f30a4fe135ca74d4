"""Services that are restarted one after another under load: no call fails (operations 12.10)."""

import asyncio

import pytest
from whippletree.v1 import common_pb2, model_executor_pb2

from gateway.executors.contract import AbortSignal
from tests.common.support import BOUND_S, until
from tests.executors.support import (
    ACCEPTED,
    McpDouble,
    ModelDouble,
    SandboxDouble,
    bash_effect,
    model_effect,
    run_of,
    tool_effect,
    world,
)

OUTCOME = common_pb2.Json(text='{"kind":"completed","output":1}')


class Load:
    """Calls of one kind, one after another, until it is stopped."""

    def __init__(self, name, call):
        self._name = name
        self._call = call
        self._stopped = False
        self.done = 0

    async def run(self):
        while not self._stopped:
            await self._call(f"{self._name}-{self.done}")
            self.done += 1

    def stop(self):
        self._stopped = True


async def some_more(loads):
    """Every load got further."""
    goals = [(load, load.done + 4) for load in loads]
    await until(lambda: all(load.done >= goal for load, goal in goals))


def counted(double, began):
    """The double's work takes a moment, and its beginning is noted wherever it runs."""

    async def answer(request, context):
        await context.send_initial_metadata(ACCEPTED)
        if double.service != "model-executor" and not await double.started(context, request):
            return None
        began.append(request.effect.effect_id)
        await asyncio.sleep(0.01)
        if double.service == "model-executor":
            return model_executor_pb2.ModelCallReply(outcome=OUTCOME)
        await context.write(double.end(outcome=OUTCOME))
        return None

    double.behaviour = answer
    return double


@pytest.mark.spec("operations:13.40")
async def test_a_rolling_restart_under_load_fails_no_call_and_begins_none_twice():
    async with world(resend_for=10) as made:
        model, tools = made.executors.model, made.executors.tools
        began: list[str] = []
        for double in (made.model, made.mcp, made.sandbox):
            counted(double, began)
        loads = [
            Load("m", lambda e: model.execute(model_effect(e), run_of(), AbortSignal(), False)),
            Load("t", lambda e: tools.execute(tool_effect(effect_id=e), run_of(), AbortSignal(), False)),
            Load("b", lambda e: tools.execute(bash_effect(effect_id=e), run_of(), AbortSignal(), False)),
        ]
        async with asyncio.timeout(BOUND_S * 2), asyncio.TaskGroup() as group:
            for load in loads:
                group.create_task(load.run())
            for kind in (ModelDouble, McpDouble, SandboxDouble) * 2:
                await some_more(loads)
                await made.ports.stop(made.addresses[kind.service])
                await made.restart(counted(kind(), began))
            await some_more(loads)
            for load in loads:
                load.stop()
    assert len(began) == len(set(began)) == sum(load.done for load in loads)
