"""The gate as a process: killed at every point of a call, and stopped by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys

import aiohttp
import pytest

from tests.tool_gate.remote_server import serving
from tests.tool_gate.support import BOUND, Client, Core, manifest, serving_core, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
START_S = 60.0


class Process:
    """A gate's process on one port, started again at will."""

    def __init__(self, folder, core, http):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = folder / "gate.toml"
        config.write_text("allow_private = true")
        self.environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "WHIPPLETREE_TOOL_GATE_LISTEN": f"127.0.0.1:{self.port}",
            "WHIPPLETREE_TOOL_GATE_CORE_URL": core.url,
            "WHIPPLETREE_TOOL_GATE_DB": str(folder / "calls.db"),
            "WHIPPLETREE_TOOL_GATE_CONFIG": str(config),
            "WHIPPLETREE_TOOL_GATE_DRAIN_MS": "300",
            "WHIPPLETREE_TOOL_GATE_FAULTS": "on",
        }
        self.client = Client(http, f"http://127.0.0.1:{self.port}")
        self.process = None
        self.output = b""

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "cli.main",
            "tool-gate",
            env=self.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        async with asyncio.timeout(START_S):
            while b"tool_gate_ready" not in (line := await self.process.stdout.readline()):
                assert line, "the gate ended at its start"
                self.output += line

    async def gone(self):
        async with asyncio.timeout(BOUND):
            self.output += await self.process.stdout.read()
            return await self.process.wait()

    async def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def gate_process(folder):
    async with (
        serving("json") as remote,
        serving_core(Core()) as core,
        aiohttp.ClientSession(trust_env=False) as http,
    ):
        core.pin(manifest(remote.declaration))
        made = Process(folder, core, http)
        await made.start()
        try:
            yield made, remote
        finally:
            await made.stop()


@pytest.mark.faults
@pytest.mark.spec("mcp-pool:11.28", "mcp-pool:11.29")
@pytest.mark.parametrize(
    ("at", "ran", "known"),
    [("received", 0, False), ("written", 0, True), ("answered", 1, True), ("settled", 1, True)],
)
async def test_a_gate_that_dies_at_any_point_never_makes_a_call_twice(tmp_path, at, ran, known):
    async with gate_process(tmp_path) as (process, remote):
        await process.client.connect()
        await process.client.fault(route="tool-calls", at=at, act="die")
        with pytest.raises(aiohttp.ClientError):
            await process.client.call("echo", {"said": "x"})
        assert await process.gone() == -signal.SIGKILL
        assert len(remote.calls) == ran
        await process.start()
        for _ in range(2):
            again = (await process.client.call("echo", {"said": "x"})).body
            if at == "settled" or not known:
                assert again["result"]["structuredContent"] == {"said": "x"}
            else:
                assert again["error"]["uncertain"]
        assert len(remote.calls) == (ran if known else 1)


@pytest.mark.faults
async def test_a_gate_that_is_killed_while_the_server_works_never_asks_again(tmp_path):
    async with gate_process(tmp_path) as (process, remote):
        call = asyncio.create_task(process.client.call("wait", {"name": "x"}))
        await until(lambda: remote.calls)
        process.process.kill()
        with pytest.raises(aiohttp.ClientError):
            await call
        await process.gone()
        remote.hold.set()
        await process.start()
        assert (await process.client.call("wait", {"name": "x"})).body["error"]["uncertain"]
        assert remote.calls == [("wait", "x")]


async def test_a_signal_drains_and_says_that_what_was_given_up_is_uncertain(tmp_path):
    async with gate_process(tmp_path) as (process, remote):
        call = asyncio.create_task(process.client.call("wait", {"name": "x"}))
        await until(lambda: remote.calls)
        process.process.send_signal(signal.SIGTERM)
        assert (await call).body["error"] == {
            "message": "The Tool Gate was stopped during the call.",
            "uncertain": True,
        }
        assert await process.gone() == 0
        assert b"Traceback" not in process.output


async def test_a_start_that_can_not_be_is_one_line_and_exit_code_1(tmp_path):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    with taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        for environ, says in (
            ({"WHIPPLETREE_TOOL_GATE_LISTEN": listen}, f"{listen} can't be listened on"),
            ({"WHIPPLETREE_TOOL_GATE_LISTEN": "nowhere"}, "WHIPPLETREE_TOOL_GATE_LISTEN must be host:port."),
            ({"WHIPPLETREE_TOOL_GATE_DB": "/proc/nowhere/calls.db"}, "WHIPPLETREE_TOOL_GATE_DB: "),
        ):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cli.main",
                "tool-gate",
                env={"PATH": os.environ["PATH"], "WHIPPLETREE_STATE_DIR": str(tmp_path), **environ},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(START_S):
                _, errors = await process.communicate()
            assert process.returncode == 1
            [line] = errors.decode().splitlines()
            assert line.startswith(says)
