"""A manager as a process of its own, and who talks to it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import sandbox_manager_pb2_grpc

from services.common.channel import bearer, open_channel
from tests.common.support import TOKEN
from tests.sandbox_manager.support import BOUND

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Running:
    """A started manager."""

    process: asyncio.subprocess.Process
    stub: sandbox_manager_pb2_grpc.SandboxManagerStub
    root: Path

    def run(self) -> Any:
        """A fresh stream."""
        return self.stub.Run(metadata=bearer(TOKEN))

    def began(self) -> bool:
        """A command has made the file `began`."""
        return any(self.root.glob("sandboxes/nylorun-*/workspace/began"))

    def records(self) -> list[dict[str, Any]]:
        """The records on the disk."""
        stored: list[dict[str, Any]] = json.loads((self.root / "sandboxes" / "records.json").read_text())[
            "records"
        ]
        return stored


def environment(root: Path, sockets: Path, driver: str) -> dict[str, str]:
    """The environment of a manager."""
    return {
        "PATH": os.environ["PATH"],
        "NYLORUN_HARNESS_ROOT": str(root),
        "NYLORUN_GRPC_LISTEN": f"unix:{sockets}/s",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_STOP_GRACE_MS": "3000",
        "WHIPPLETREE_SANDBOX_DRIVER": driver,
    }


@asynccontextmanager
async def started(
    root: Path,
    sockets: Path,
    driver: str = "emulated",
    prefix: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """Starts a manager, with `prefix` before its command, and ends it."""
    process = await asyncio.create_subprocess_exec(
        *prefix, sys.executable, "-m", "services.sandbox_manager.main",
        env={**environment(root, sockets, driver), **(extra or {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    channel = open_channel(f"unix:{sockets}/s")
    try:
        async with asyncio.timeout(BOUND):
            while b"grpc_serving" not in (line := await process.stdout.readline()):
                assert line, (await process.communicate())[1]
        yield Running(process, sandbox_manager_pb2_grpc.SandboxManagerStub(channel), root)
    finally:
        await channel.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()
