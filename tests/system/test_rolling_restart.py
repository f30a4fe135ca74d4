"""Every part of a stack is restarted, one after another, while turns run: none of them fails (operations 12.10).

And what the parts say of it meanwhile: metrics over Prometheus, spans over OTLP, `whippletree drain`.
"""

import asyncio
import itertools
import os
import signal

import pytest

from cli.drain import DONE, _drain
from cli.stack import GATEWAY, MCP, MODEL, SANDBOX
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

    def __init__(self, stack, core):
        self._stack = stack
        self._core = core
        self._numbers = itertools.count()
        self._stop = False
        self._ended = asyncio.Event()
        self.ends = {}
        self.bad = []

    async def run(self):
        session = await self._core.create_session(AGENT)
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
