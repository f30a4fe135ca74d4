"""Starts several processes, restarts the ones that die, and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from cli.output import LineSink
from cli.stack import GATEWAY, ProcessSpec
from services.common.child_start import death_signal_prefix
from services.common.process import StartFailed

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0
"""A process that ran this long starts again with the first pause."""
EARLY_S = 5.0
"""A first start that ends with exit code 1 within this time is a fault of the configuration."""
GIVE_BACK_S = 15.0
SERVICE_STOP_S = 20.0
LINE_LIMIT = 1 << 20


@dataclass(slots=True)
class _Running:
    spec: ProcessSpec
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    last_error: str = ""
    retired: bool = False


class Supervisor:
    """Owns one task per process for the time of `run`."""

    def __init__(
        self, specs: Sequence[ProcessSpec], sink: LineSink, *, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self._entries = {spec.name: _Running(spec) for spec in specs}
        self._sink = sink
        self._longest_pause_s = longest_pause_s
        self._retiring = asyncio.Event()

    def pid(self, name: str) -> int | None:
        """The process id of a running process."""
        process = self._entries[name].process
        return process.pid if process is not None and process.returncode is None else None

    def starts(self, name: str) -> int:
        """How often a process was started."""
        return self._entries[name].starts

    async def run(self, stop: asyncio.Event) -> None:
        """Runs all processes until `stop`, then stops them: the gateway first, the development core last.

        Raises StartFailed when one can't start at all; the others are stopped first.
        """
        keepers = {name: asyncio.create_task(self._keep(entry)) for name, entry in self._entries.items()}
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*keepers.values(), stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._stop_all()
            results = await asyncio.gather(*keepers.values(), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def kill_all(self) -> None:
        """Ends everything at once (the second Ctrl-C)."""
        for name, entry in self._entries.items():
            entry.retired = True
            self._signal(name, signal.SIGKILL)

    async def _keep(self, entry: _Running) -> None:
        pause = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not entry.retired:
            began = loop.time()
            code = await self._run_once(entry)
            if entry.retired:
                return
            ran = loop.time() - began
            if entry.starts == 1 and code == 1 and ran < EARLY_S:
                raise StartFailed(
                    f"{entry.spec.name} could not start: {entry.last_error or 'it said nothing'}"
                )
            if ran >= STEADY_S:
                pause = FIRST_PAUSE_S
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._sink("up", f"{entry.spec.name} {how}; starting it again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retiring.wait(), pause)
            pause = min(self._longest_pause_s, pause * 2)

    async def _run_once(self, entry: _Running) -> int:
        argv = (*death_signal_prefix("TERM"), *entry.spec.argv)
        entry.starts += 1
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(entry.spec.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LINE_LIMIT,
        )
        entry.process = process
        if entry.retired:
            self._signal(entry.spec.name, signal.SIGTERM)
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay(entry, process.stdout, is_error=False))
            group.create_task(self._relay(entry, process.stderr, is_error=True))
        return await process.wait()

    async def _relay(self, entry: _Running, stream: asyncio.StreamReader, *, is_error: bool) -> None:
        while True:
            try:
                raw = await stream.readline()
            except ValueError:
                self._sink(entry.spec.name, "(a line of over 1 MiB was left out)")
                continue
            if not raw:
                return
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if is_error and line:
                entry.last_error = line
            self._sink(entry.spec.name, line)

    async def _stop_all(self) -> None:
        self._retiring.set()
        for entry in self._entries.values():
            entry.retired = True
        names = list(self._entries)
        gateway = [name for name in names if name == GATEWAY]
        services = [name for name in names[1:] if name != GATEWAY]
        for batch, bound in ((gateway, GIVE_BACK_S), (services, SERVICE_STOP_S), (names[:1], SERVICE_STOP_S)):
            for name in batch:
                self._signal(name, signal.SIGTERM)
            await asyncio.gather(*(self._ended(name, bound) for name in batch))

    async def _ended(self, name: str, bound: float) -> None:
        process = self._entries[name].process
        if process is None:
            return
        try:
            async with asyncio.timeout(bound):
                await process.wait()
        except TimeoutError:
            self._sink("up", f"{name} did not stop within {bound:g} s and is killed")
            self._signal(name, signal.SIGKILL)
            await process.wait()

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._entries[name].process
        if process is None or process.returncode is not None:
            return
        try:
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        except ProcessLookupError:
            return
