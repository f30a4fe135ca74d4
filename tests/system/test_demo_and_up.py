"""The two commands that people type first, as real processes."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from cli.core_client import CoreClient
from cli.ports import SETTINGS, free_ports
from cli.state import open_state
from tests.common.support import until as soon
from tests.system.support import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def command(*words):
    return [sys.executable, "-m", "cli.main", *words]


def moved_ports():
    ports = free_ports()
    environ = {setting: f"127.0.0.1:{getattr(ports, name)}" for name, setting in SETTINGS.items()}
    return ports, {**environ, "NYLORUN_HARNESS_HEALTH_PORT": str(ports.health)}


@contextlib.asynccontextmanager
async def started(*words, environ):
    process = await asyncio.create_subprocess_exec(
        *command(*words),
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_until(process, text):
    seen = []
    async with asyncio.timeout(60):
        while True:
            line = (await process.stdout.readline()).decode()
            assert line, "".join(seen)
            seen.append(line)
            if text in line:
                return seen


def children_of(folder):
    """Processes that still hold something of the folder in their environment or command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                if str(folder).encode() in file.read():
                    found.append(int(entry))
    return found


def test_the_demo_completes_a_turn_through_all_services():
    done = subprocess.run(command("demo"), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Agent: Order A-1001" in done.stdout
    rows = re.findall(
        r"^(\S.*?)  +(model-executor|mcp-pool|sandbox-manager) +(\d+) +(\d+) ", done.stdout, re.M
    )
    assert [(what, where) for what, where, _, _ in rows] == [
        ("model call", "model-executor"),
        ("orders__get_order", "mcp-pool"),
        ("orders__order_total", "mcp-pool"),
        ("model call", "model-executor"),
        ("bash", "sandbox-manager"),
        ("model call", "model-executor"),
        ("edit", "sandbox-manager"),
        ("model call", "model-executor"),
        ("read", "sandbox-manager"),
        ("model call", "model-executor"),
    ]
    assert done.stderr == ""


def test_the_demo_runs_a_flow_whose_loop_goes_round():
    done = subprocess.run(command("demo", "--flow"), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Brief:    The mill bought two horses" in done.stdout
    rows = re.findall(r"^(function|agent) (\S+) +(Action endpoint|linked session) ", done.stdout, re.M)
    assert [(kind, path) for kind, path, _ in rows] == [
        ("function", "parts:input"),
        *[("agent", f"summariser[{index}]") for index in range(4)],
        ("function", "brief:input"),
        *[("agent", "editor"), ("function", "brief:verify")] * 2,
    ]
    assert done.stderr == ""


@pytest.mark.faults
def test_the_demo_kills_processes_and_every_letter_is_sent_once():
    done = subprocess.run(command("demo", "--kill"), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is killed with SIGKILL") == 2
    assert "takes 2 outcomes from the journal" in done.stdout
    assert "the turn is `uncertain`" in done.stdout
    assert "  to Mara\n  to Jonas\nEach letter was sent once." in done.stdout


def test_the_demo_that_kills_takes_no_other_agent_or_model():
    words = ("demo", "--kill", "--flow")
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "leave --flow and --model out" in done.stderr


async def test_the_demo_stays_up_when_asked_and_stops_on_ctrl_c():
    async with started("demo", "--stay", environ={}) as process:
        lines = await read_until(process, "Staying up")
        url = re.search(r"http://\S+", lines[-1]).group()
        async with CoreClient(url) as core:
            assert (await core._call("GET", "/health"))["status"] == "ok"
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 40) == 0


async def test_up_serves_restarts_what_dies_and_stops_cleanly(tmp_path):
    ports, environ = moved_ports()
    environ["WHIPPLETREE_STATE_DIR"] = str(tmp_path / "state")
    async with started("up", environ=environ) as process:
        await read_until(process, "Ready.")
        async with CoreClient(f"http://127.0.0.1:{ports.core_http}") as core:
            await core.put_agent("a", {"manifestSchemaVersion": 4, "id": "a", "capabilities": []})
            session = await core.create_session("a")
            await core.send_message(session, "Hello")
            view = await until(lambda: core.session(session), lambda seen: seen["status"] == "completed")
            assert "scripted answer" in view["lastTurn"]["result"]["output"]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 40) == 0
    assert children_of(tmp_path) == []


def pending(pid, number):
    """Whether a signal was sent to a stopped process, which it will see when it goes on."""
    with open(f"/proc/{pid}/status") as file:
        masks = [line.split()[1] for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


@pytest.mark.faults
@pytest.mark.parametrize("words", [("up",), ("demo", "--stay")])
async def test_a_second_ctrl_c_ends_everything_at_once(words, tmp_path):
    _, environ = moved_ports()
    environ |= {"WHIPPLETREE_STATE_DIR": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    async with started(*words, environ=environ) as process:
        await read_until(process, "Ready." if words == ("up",) else "Staying up")
        children = psutil.Process(process.pid).children(recursive=True)
        [gateway] = [child for child in children if "gateway" in child.cmdline()]
        gateway.suspend()  # It can't stop by itself, and the services wait for it.
        process.send_signal(signal.SIGINT)
        await soon(lambda: pending(gateway.pid, signal.SIGTERM))
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        # A clean stop would give the gateway 15 s, and say that it is killed after them.
        output = (await asyncio.wait_for(process.stdout.read(), 40)).decode()
        await asyncio.wait_for(process.wait(), 40)
    assert "did not stop within" not in output
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert gone


async def test_what_up_keeps_is_there_after_a_restart(tmp_path):
    ports, environ = moved_ports()
    environ["WHIPPLETREE_STATE_DIR"] = str(tmp_path)
    url = f"http://127.0.0.1:{ports.core_http}"
    async with started("up", environ=environ) as process:
        await read_until(process, "Ready.")
        async with CoreClient(url) as core:
            await core.put_agent("a", {"manifestSchemaVersion": 4, "id": "a", "capabilities": []})
            session = await core.create_session("a")
            await core.send_message(session, "Hello")
            await until(lambda: core.session(session), lambda seen: seen["status"] == "completed")
        process.kill()
        await process.wait()
    # The children die with their parent; their ports are free again when nobody listens.
    for name in SETTINGS:
        await until(lambda name=name: _closed(getattr(ports, name)), bool)
    async with started("up", environ=environ) as process:
        await read_until(process, "Ready.")
        async with CoreClient(url) as core:
            assert (await core.session(session))["status"] == "completed"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 40) == 0


async def _closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_up_names_the_taken_port_and_its_setting(tmp_path):
    _, environ = moved_ports()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        environ["WHIPPLETREE_MCP_POOL_LISTEN"] = f"127.0.0.1:{holder.getsockname()[1]}"
        environ["WHIPPLETREE_STATE_DIR"] = str(tmp_path)
        done = subprocess.run(
            command("up"),
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "WHIPPLETREE_MCP_POOL_LISTEN" in done.stderr


async def test_no_token_reaches_a_log_a_command_line_or_an_environment(tmp_path):
    _, environ = moved_ports()
    state = open_state(tmp_path)
    tokens = [state.token_file(name).read_text().strip() for name in os.listdir(tmp_path / "tokens")]
    environ["WHIPPLETREE_STATE_DIR"] = str(tmp_path)
    environ["NYLORUN_LOG_LEVEL"] = "debug"
    async with started("up", environ=environ) as process:
        lines = await read_until(process, "Ready.")
        seen = "".join(lines)
        for entry in os.listdir("/proc"):
            for name in ("cmdline", "environ"):
                with (
                    contextlib.suppress(OSError, ValueError),
                    open(f"/proc/{int(entry)}/{name}", "rb") as file,
                ):
                    seen += file.read().decode("utf-8", "replace")
        process.terminate()
        rest, _ = await process.communicate()
    seen += rest.decode()
    assert len(tokens) == 4
    assert not [token for token in tokens if token in seen]
    assert json.dumps(seen).count(str(tmp_path)) > 0
