"""A whole stack of real processes for tests, and what they ask of it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from cli.core_client import CoreClient, CoreError
from cli.demo_agent import sandbox_tools
from cli.output import format_line
from cli.ports import free_ports
from cli.running_stack import RunningStack
from cli.stack import CORE, StackPlan
from cli.state import open_state

COUNTING_SERVER = Path(__file__).parent / "counting_server.py"
ENDED = ("completed", "failed", "cancelled", "uncertain", "paused")


class Stack:
    """The processes in a folder of their own, restarted when they die. `log` keeps every line."""

    def __init__(self, folder, answers, core_settings=None, environ=None, overrides=None, gate=None):
        self.folder = folder
        script = folder / "script.json"
        script.write_text(json.dumps({"answers": answers}))
        self.log = []
        self.plan = StackPlan(
            state=open_state(folder / "state"),
            ports=free_ports(),
            environ={**os.environ, **(environ or {})},
            model_script=script,
            gate=gate,
            overrides={**(overrides or {}), CORE: core_settings or {}},
        )

    async def start(self):
        """Starts everything; the ports can be changed before."""
        self.running = RunningStack(
            self.plan, lambda name, line: self.log.append((name, line)), longest_pause_s=0.25
        )
        try:
            await self.running.ready()
        except BaseException:
            await self.running.close()
            raise

    async def stop(self):
        await self.running.close()

    def core(self):
        return CoreClient(self.plan.core_url())

    def kill(self, name):
        pid = self.running.supervisor.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def tail(self, count=60):
        return "\n".join(format_line(name, line, colour=False) for name, line in self.log[-count:])

    def lines(self, name):
        return [line for process, line in self.log if process == name]


async def patiently(call, bound=30.0):
    """Repeats a call while the core is away (it may just have been killed)."""
    async with asyncio.timeout(bound):
        while True:
            with contextlib.suppress(CoreError):
                return await call()
            await asyncio.sleep(0.05)


async def until(look, predicate, bound=60.0, pause=0.01):
    """Looks again and again until the predicate holds; what was seen then."""
    seen = None
    try:
        async with asyncio.timeout(bound):
            while True:
                seen = await patiently(look, bound)
                if predicate(seen):
                    return seen
                await asyncio.sleep(pause)
    except TimeoutError:
        raise AssertionError(f"not seen within {bound} s; at last: {json.dumps(seen)[:2000]}") from None


def counting_manifest(agent_id):
    """An agent with the counting MCP server and a sandbox."""
    server = {
        "name": "counting",
        "type": "stdio",
        "command": sys.executable,
        "args": ["-S", "-I", str(COUNTING_SERVER)],
    }
    return {
        "manifestSchemaVersion": 4,
        "id": agent_id,
        "capabilities": [
            {"id": "counting", "type": "agent", "mcpServers": {"counting": server}},
            {
                "id": "workspace",
                "type": "agent",
                "sandbox": {"network": {"preset": "none"}},
                "tools": sandbox_tools(),
            },
        ],
    }


def calls(agent, step, *tools, text=None, delay_ms=0):
    """A scripted model answer that calls tools."""
    blocks = [
        {"type": "tool-call", "id": f"c{step}-{n}", "name": name, "args": args}
        for n, (name, args) in enumerate(tools)
    ]
    entry = {"agent": agent, "step": step, "answer": {"output": blocks, "finishReason": "tool-calls"}}
    if text is not None:
        entry["text"] = text
    if delay_ms:
        entry["delayMs"] = delay_ms
    return entry
