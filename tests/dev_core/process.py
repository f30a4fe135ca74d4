"""A development core as a process of its own, which can be killed and started again on its database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp

from tests.dev_core.support import BOUND_S, TOKEN, CoreClient

ROOT = Path(__file__).resolve().parents[2]


class CoreProcess:
    """One database, and the process that serves it at the moment."""

    def __init__(self, database: Path, http: aiohttp.ClientSession, **settings: str) -> None:
        self._database = database
        self._http = http
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.client: CoreClient
        self.starts = 0

    async def start(self) -> CoreClient:
        """Starts the process and waits until it serves."""
        env = {
            "PATH": os.environ["PATH"],
            "NYLORUN_HARNESS_TOKEN": TOKEN,
            "WHIPPLETREE_CORE_DB": str(self._database),
            "WHIPPLETREE_CORE_HTTP_LISTEN": "127.0.0.1:0",
            "WHIPPLETREE_CORE_HARNESS_LISTEN": "127.0.0.1:0",
            **self._settings,
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.dev_core.main", cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE
        )
        self.starts += 1
        assert self._process.stdout is not None
        async with asyncio.timeout(3 * BOUND_S):
            while True:
                line = await self._process.stdout.readline()
                assert line, "the core ended before it served"
                message: dict[str, Any] = json.loads(line)
                if message["message"] == "dev_core_ready":
                    break
        self._reader = asyncio.create_task(self._drain(self._process.stdout))
        ready: Any = SimpleNamespace(http=message["http"], harness=message["harness"])
        self.client = CoreClient(ready, self._http, asyncio.Event())
        return self.client

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        async with asyncio.timeout(2 * BOUND_S):
            code = await self._process.wait()
        if self._reader is not None:
            await self._reader
        return code


@contextlib.asynccontextmanager
async def core_process(database: Path, **settings: str) -> AsyncIterator[CoreProcess]:
    """A core process that is gone afterwards."""
    async with aiohttp.ClientSession() as http:
        process = CoreProcess(database, http, **settings)
        await process.start()
        try:
            yield process
        finally:
            await process.kill()
