"""A model-executor as a process of its own, asked over gRPC as a gateway does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2, admin_pb2_grpc, common_pb2, model_executor_pb2, model_executor_pb2_grpc

from services.common.channel import bearer, open_channel
from tests.common.support import BOUND_S, TOKEN

ROOT = Path(__file__).resolve().parents[2]
CANCEL = common_pb2.ABORT_KIND_CANCEL


class ExecutorProcess:
    """One process; `lines` is what it printed."""

    def __init__(self, root: Path, **settings: str) -> None:
        self._settings = {
            "PATH": os.environ["PATH"],
            "NYLORUN_GRPC_LISTEN": "127.0.0.1:0",
            "NYLORUN_GRPC_TOKEN": TOKEN,
            "NYLORUN_HARNESS_ROOT": str(root),
            **settings,
        }
        self.lines: list[str] = []
        self.address = ""

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.model_executor.main",
            cwd=ROOT,
            env=self._settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(3 * BOUND_S):
            while not self.address:
                line = await self._process.stdout.readline()
                assert line, f"the executor ended before it served: {self.lines}"
                self.lines.append(line.decode().rstrip())
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if message["message"] == "grpc_serving":
                        self.address = message["address"]
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        self._channel = open_channel(self.address, max_message_bytes=70 * 1024 * 1024)
        self._stub = model_executor_pb2_grpc.ModelExecutorStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.lines.append(line.decode("utf-8", "replace").rstrip())

    async def call(self, request: Any, run_token: str | None = None) -> Any:
        """The outcome, parsed; the reply itself when it is none. Raises AioRpcError."""
        metadata = bearer(TOKEN)
        if run_token is not None:
            metadata = (*metadata, ("x-nylorun-run-token", run_token))
        reply = await self._stub.Call(request, metadata=metadata)
        return json.loads(reply.outcome.text) if reply.WhichOneof("result") == "outcome" else reply

    async def cancel(self, effect: Any, run_token: str | None = None) -> Any:
        metadata = bearer(TOKEN)
        if run_token is not None:
            metadata = (*metadata, ("x-nylorun-run-token", run_token))
        request = common_pb2.CancelRequest(effect=effect, kind=CANCEL)
        return await self._stub.Cancel(request, metadata=metadata)

    async def stats(self) -> Any:
        return await self._admin.Stats(admin_pb2.StatsRequest(), metadata=bearer(TOKEN))

    async def busy(self) -> None:
        """Waits until a call is in flight."""
        async with asyncio.timeout(BOUND_S):
            while not (await self.stats()).in_flight:  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._process.terminate()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        async with asyncio.timeout(2 * BOUND_S):
            code = await self._process.wait()
            await self._reader
        await self._channel.close()
        return code


@contextlib.asynccontextmanager
async def executor_process(root: Path, **settings: str) -> AsyncIterator[ExecutorProcess]:
    """A process that is gone afterwards."""
    process = ExecutorProcess(root, **settings)
    await process.start()
    try:
        yield process
    finally:
        process.kill()
        await process.ended()


def request_for(call: str, effect_id: str = "e", *, rejoin: bool = False, **effect: Any) -> Any:
    """A Call's request."""
    values = {
        "tenant_id": "t",
        "session_id": "s",
        "turn_id": "turn",
        "agent_id": "agent",
        "epoch": 1,
        "effect_id": effect_id,
    }
    return model_executor_pb2.ModelCallRequest(
        effect=common_pb2.EffectRef(**values | effect),
        invocation_id="inv",
        call=common_pb2.Json(text=call),
        rejoin=rejoin,
    )


def direct_settings(folder: Path, text: str, **more: str) -> dict[str, str]:
    """The settings of the direct route with a configuration."""
    config = folder / "model.toml"
    config.write_text(text)
    return {"WHIPPLETREE_MODEL_ROUTE": "direct", "WHIPPLETREE_MODEL_CONFIG": str(config), **more}


def status_of(error: BaseException) -> grpc.StatusCode:
    assert isinstance(error, grpc.aio.AioRpcError)
    return error.code()
