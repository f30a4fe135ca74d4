"""Child processes of a benchmark: started, waited for until they say that they serve, stopped by their id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from services.common.child_start import death_signal_prefix

READY_S: Final = 60.0
STOP_S: Final = 10.0
LINE_LIMIT: Final = 1 << 20
_KEPT_LINES: Final = 20


class NotReady(Exception):
    """A child ended, or said nothing in time; the text has its last lines."""


class Child:
    """A child of ours that writes one JSON object a line."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader: asyncio.Task[None] | None = None

    async def ready(self, message: str) -> dict[str, Any]:
        """Waits for the line whose `message` is this. Raises NotReady."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                while raw := await self._process.stdout.readline():
                    self._last.append(raw.decode("utf-8", "replace").rstrip())
                    record = _record(raw)
                    if record.get("message") == message:
                        self._reader = asyncio.create_task(self._drain())
                        return record
        except TimeoutError:
            pass
        raise NotReady(f"{self.name} did not get ready:\n" + "\n".join(self._last))

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not end."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def _drain(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.readline():
            pass


@contextlib.asynccontextmanager
async def child(name: str, argv: Sequence[str], environ: Mapping[str, str]) -> AsyncIterator[Child]:
    """A child process until the end of the block. What it writes to stderr is the benchmark's."""
    process = await asyncio.create_subprocess_exec(
        *death_signal_prefix(),
        *argv,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=LINE_LIMIT,
    )
    started = Child(name, process)
    try:
        yield started
    finally:
        await started.stop()


def helper(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of a helper of this folder."""
    return (sys.executable, "-m", f"bench.{module}", *arguments)


def say_ready(**members: Any) -> None:
    """What a helper of ours writes once it serves."""
    print(json.dumps({"message": "ready", **members}), flush=True)


def _record(raw: bytes) -> dict[str, Any]:
    try:
        record = json.loads(raw)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
