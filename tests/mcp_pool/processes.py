"""The real mcp-pool process, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from tests.leaks.watch import secret
from tests.mcp_pool.support import BOUND

TOKEN = secret("cd" * 32)
REPOSITORY = Path(__file__).parents[2]


@asynccontextmanager
async def process(folder, **settings):
    """Starts `services.mcp_pool.main` and waits until it serves."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "protos")]),
        "NYLORUN_GRPC_LISTEN": "127.0.0.1:0",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(folder / "root"),
        **settings,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.mcp_pool.main",
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        cwd=folder,
        limit=2**20,
    )
    reader = None
    try:
        async with asyncio.timeout(BOUND):
            while (line := json.loads(await child.stdout.readline()))["message"] != "grpc_serving":
                pass
        # A process whose log nobody reads stands still one day.
        child.lines = []
        reader = asyncio.create_task(_read(child))
        yield child, line["address"]
    finally:
        if child.returncode is None:
            child.kill()
        async with asyncio.timeout(BOUND):
            await child.wait()
            if reader is not None:
                await reader


async def _read(child):
    while line := await child.stdout.readline():
        child.lines.append(json.loads(line))
