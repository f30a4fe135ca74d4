"""Runs the processes of a stack until it is told to stop, and says when they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from cli.output import LineSink
from cli.stack import StackPlan, process_specs
from cli.supervisor import LONGEST_PAUSE_S, Supervisor
from services.common.process import StartFailed

READY_BOUND_S: Final = 60.0
POLL_S: Final = 0.05


class RunningStack:
    """A stack whose processes were started. `stop` ends it."""

    def __init__(self, plan: StackPlan, sink: LineSink, *, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self.plan = plan
        self.stop = asyncio.Event()
        self.supervisor = Supervisor(process_specs(plan), sink, longest_pause_s=longest_pause_s)
        self._run = asyncio.create_task(self.supervisor.run(self.stop))

    async def ready(self) -> None:
        """Returns when the Tool Gate serves, if there is one, and the gateway is connected to the core; it
        connects once all services serve.

        Raises StartFailed when a process can't start, or after 60 s.
        """
        waiting = asyncio.create_task(self._until_connected())
        try:
            async with asyncio.timeout(READY_BOUND_S):
                await asyncio.wait((waiting, self._run), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise StartFailed(
                f"the processes were not ready within {READY_BOUND_S:g} s; their output above says more"
            ) from None
        finally:
            waiting.cancel()
        if self._run.done() and not waiting.done():
            await self._run
            raise StartFailed("the processes were stopped before they were ready")

    async def ended(self) -> None:
        """Waits until all processes have stopped. Raises StartFailed."""
        await self._run

    async def close(self) -> None:
        """Stops everything, in order."""
        self.stop.set()
        with contextlib.suppress(StartFailed):
            await self._run

    async def _until_connected(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            if self.plan.gate is not None:
                await _until(http, f"{self.plan.gate_url()}/ready", "ready")
            await _until(http, f"{self.plan.health_url()}/health", "connected")


async def _until(http: aiohttp.ClientSession, url: str, member: str) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with http.get(url) as answer:
                if (await answer.json()).get(member) is True:
                    return
        await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def running_stack(plan: StackPlan, sink: LineSink) -> AsyncIterator[RunningStack]:
    """Starts the stack; stops it in order at the end. The first SIGINT or SIGTERM stops it cleanly, the
    second kills it."""
    stack = RunningStack(plan, sink)
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stack.stop.is_set():
            stack.supervisor.kill_all()
        stack.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        yield stack
    finally:
        await stack.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
