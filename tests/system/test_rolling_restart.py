"""Every part of a stack is restarted, one after another, while turns run: none of them fails (operations 12.10).

And what the parts say of it meanwhile: metrics over Prometheus, spans over OTLP, `whippletree drain`.
"""

import asyncio
import itertools
import json
import os
import signal

import aiohttp
import pytest

from cli.drain import DONE, _drain
from cli.stack import GATEWAY, MCP, MODEL, SANDBOX
from tests.system.model_stack import AGENT as PLAIN
from tests.system.model_stack import ModelStack
from tests.system.support import Stack, calls, counting_manifest, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

AGENT = "roller"
ANSWERS = [
    calls(AGENT, 0, ("counting__echo", {"text": "one"})),
    calls(AGENT, 1, ("bash", {"command": "echo two"})),
    {
        "agent": AGENT,
        "step": 2,
        "answer": {"output": [{"type": "text", "text": "Done."}], "finishReason": "stop"},
    },
]
LOOPS = 3
BOUND_S = 90.0


class Load:
    """Turns without a pause, several at a time; `ends` counts how they ended."""

    def __init__(self, stack, core, agent=AGENT):
        self._stack = stack
        self._core = core
        self._agent = agent
        self._numbers = itertools.count()
        self._stop = False
        self._ended = asyncio.Event()
        self.ends = {}
        self.bad = []

    async def run(self):
        session = await self._core.create_session(self._agent)
        while not self._stop:
            turn = await self._core.send_message(session, f"turn {next(self._numbers)}")
            end = await self._core.turn_end(session, turn)
            self.ends[end] = self.ends.get(end, 0) + 1
            self._ended.set()
            if end != "turn.completed":
                self.bad.append((turn, end, await self._core.effects(session, turn)))

    def stop(self):
        self._stop = True

    @property
    def done(self):
        return sum(self.ends.values())

    async def more(self, count=LOOPS * 2):
        """Waits for so many more turns."""
        wanted = self.done + count
        async with asyncio.timeout(BOUND_S):
            while self.done < wanted:
                self._ended.clear()
                await self._ended.wait()


async def restarted(stack, name, load):
    """SIGTERM to one process, while turns run; returns when the next one works."""
    supervisor = stack.running.supervisor
    starts, pid = supervisor.starts(name), supervisor.pid(name)
    os.kill(pid, signal.SIGTERM)
    started = await until(
        lambda: _state(supervisor, name),
        lambda seen: seen[0] > starts and seen[1] not in (pid, None),
        BOUND_S,
    )
    assert started
    await load.more()


async def _state(supervisor, name):
    return supervisor.starts(name), supervisor.pid(name)


@pytest.mark.spec("operations:13.40")
async def test_no_turn_fails_while_each_process_is_restarted(tmp_path):
    stack = Stack(tmp_path, ANSWERS)
    await stack.start()
    try:
        async with stack.core() as core, asyncio.TaskGroup() as group:
            await core.put_agent(AGENT, counting_manifest(AGENT))
            load = Load(stack, core)
            for _ in range(LOOPS):
                group.create_task(load.run())
            await load.more()
            for name in (MODEL, MCP, SANDBOX, GATEWAY):
                await restarted(stack, name, load)
            load.stop()
        assert set(load.ends) == {"turn.completed"}, f"{load.bad}\n{stack.tail(200)}"
    finally:
        await stack.stop()


@pytest.mark.spec("operations:13.39")
async def test_a_second_model_executor_gets_calls_and_the_first_is_drained_without_losing_one(tmp_path):
    stack = ModelStack(tmp_path, {})
    answers = [{"agent": PLAIN, "step": 0, "answer": "Done."}]
    (tmp_path / "script.json").write_text(json.dumps({"answers": answers}))
    await stack.start()
    try:
        async with stack.core() as core, stack.second_executor(), asyncio.TaskGroup() as group:
            load = Load(stack, core, PLAIN)
            for _ in range(LOOPS):
                group.create_task(load.run())
            for address in (stack.first, stack.second):
                await until(lambda at=address: replica_at(stack, at), has_completed, BOUND_S)
            target = stack.first.removeprefix("ipv4:")
            drained = await _drain(
                stack.plan.health_url(), MODEL, target, lambda _: None, wait=True, within_s=BOUND_S
            )
            assert drained == DONE
            last = await until(lambda: replica_at(stack, stack.first), is_drained, BOUND_S)
            now = await replica_at(stack, stack.second)
            await until(
                lambda: replica_at(stack, stack.second),
                lambda seen: completed(seen) > completed(now) + LOOPS * 4,
                BOUND_S,
            )
            assert completed(await replica_at(stack, stack.first)) == completed(last)
            load.stop()
        assert set(load.ends) == {"turn.completed"}, f"{load.bad}\n{stack.tail(200)}"
    finally:
        await stack.stop()


async def replica_at(stack, address):
    """A model-executor as the gateway saw it last (every 2 s)."""
    async with aiohttp.ClientSession() as http, http.get(f"{stack.plan.health_url()}/fleet") as answer:
        replicas = (await answer.json())["services"][MODEL]["replicas"]
    [replica] = [one for one in replicas if one["target"] == address.removeprefix("ipv4:")]
    return replica


def completed(replica):
    return replica.get("counts", {}).get("model.completed", 0)


def has_completed(replica):
    return completed(replica) > 0


def is_drained(replica):
    """Seen after the end of its last call."""
    return replica.get("draining") is True and replica.get("running") == 0


async def test_a_service_that_is_drained_finishes_its_turns_and_works_again_after_a_restart(tmp_path):
    stack = Stack(tmp_path, ANSWERS)
    await stack.start()
    try:
        async with stack.core() as core, asyncio.TaskGroup() as group:
            await core.put_agent(AGENT, counting_manifest(AGENT))
            load = Load(stack, core)
            for _ in range(LOOPS):
                group.create_task(load.run())
            await load.more()
            steps = []
            drained = await _drain(
                stack.plan.health_url(), MODEL, None, steps.append, wait=True, within_s=BOUND_S
            )
            assert drained == DONE
            assert steps[-1]["inFlight"] == []
            await restarted(stack, MODEL, load)
            load.stop()
        assert set(load.ends) == {"turn.completed"}, f"{load.bad}\n{stack.tail(200)}"
    finally:
        await stack.stop()
