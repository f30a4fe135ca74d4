"""What a process costs before it has anything to do: what it loads, its memory, its start."""

import asyncio
import os
import subprocess
import sys

import psutil
import pytest

from cli.ports import free_ports
from tests.leaks.watch import secret

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TOKEN = secret("4b1d2f7a90c3e586" * 4)
ON_FIRST_USE = (
    "opentelemetry",
    "prometheus_client",
    "rich",
    "cyclopts",
    "openai",
    "anthropic",
    "mcp",
    "httpx2",
    "pydantic",
    "cryptography",
    "just_bash",
    "aiodocker",
)
MOST_RESIDENT = 80 * 2**20
MOST_CPU_S = 1.5
"""The bound of the start on a quiet core: unlike the clock it doesn't depend on who else runs."""
PROCESSES = {
    "model-executor": "services.model_executor.main",
    "mcp-pool": "services.mcp_pool.main",
    "sandbox-manager": "services.sandbox_manager.main",
    "gateway": "cli.gateway_process",
}


@pytest.mark.parametrize("module", PROCESSES.values())
def test_what_only_some_need_is_not_loaded_at_the_start(module):
    code = (
        f"import sys, {module}\n"
        f"found = [name for name in {ON_FIRST_USE!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {found}' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PROCESSES)
async def test_an_idle_process_is_small_and_was_quick_to_start(name, tmp_path):
    targets = {
        f"NYLORUN_{service}_TARGET": "127.0.0.1:1"
        for service in ("MODEL_EXECUTOR", "MCP_POOL", "SANDBOX_MANAGER")
    }
    own = {
        "NYLORUN_HARNESS_URL": "ws://127.0.0.1:1/nylorun/harness/v1",
        "NYLORUN_HARNESS_TOKEN": TOKEN,
        **targets,
    }
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(tmp_path),
        **(own if name == "gateway" else {"NYLORUN_GRPC_LISTEN": "127.0.0.1:0"}),
        "WHIPPLETREE_MODEL_ROUTE": "scripted",
        "WHIPPLETREE_MODEL_SCRIPT": str(tmp_path / "script.json"),
        "WHIPPLETREE_SANDBOX_DRIVER": "bwrap",
    }
    if name == "gateway":
        environ["NYLORUN_HARNESS_HEALTH_PORT"] = str(free_ports().health)
    (tmp_path / "script.json").write_text('{"answers": []}')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", name),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    seen = ""
    try:
        async with asyncio.timeout(60):
            while "grpc_serving" not in seen and "harness_waiting_for_services" not in seen:
                line = await process.stdout.readline()
                assert line, seen
                seen += line.decode()
        facts = psutil.Process(process.pid)
        times = facts.cpu_times()
        assert times.user + times.system < MOST_CPU_S
        assert facts.memory_info().rss < MOST_RESIDENT
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
