"""The real process: how it starts, how it ends, and that it takes its children along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from services.common.channel import bearer, open_channel
from services.common.child_start import death_signal_prefix
from tests.mcp_pool.processes import REPOSITORY, TOKEN, process
from tests.mcp_pool.support import BOUND, manifest, process_gone, stdio, until


async def open_servers(address, *servers):
    """Lets the process start servers for a session."""
    async with open_channel(address) as channel, asyncio.timeout(BOUND):
        await mcp_pool_pb2_grpc.McpPoolStub(channel).Discover(
            mcp_pool_pb2.DiscoverRequest(
                tenant_id="t",
                session_id="s",
                root_manifest=common_pb2.Json(text=json.dumps(manifest(*servers))),
            ),
            metadata=bearer(TOKEN),
        )


def pids(mark):
    return [int(pid) for pid in mark.read_text().split()]


@pytest.mark.system
async def test_sigterm_ends_the_process_with_all_servers_stubborn_ones_included(tmp_path):
    mark = tmp_path / "pids"
    async with process(tmp_path, NYLORUN_STOP_GRACE_MS="6000") as (child, address):
        await open_servers(
            address, stdio("tame", f"mark={mark}"), stdio("stubborn", "ignore-sigterm", f"mark={mark}")
        )
        assert len(pids(mark)) == 2
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            assert await child.wait() == 0
        assert all(process_gone(pid) for pid in pids(mark))


@pytest.mark.system
@pytest.mark.faults
@pytest.mark.skipif(not death_signal_prefix(), reason="needs setpriv of util-linux")
async def test_servers_do_not_outlive_a_process_that_is_killed(tmp_path):
    mark = tmp_path / "pids"
    async with process(tmp_path) as (child, address):
        await open_servers(address, *(stdio(f"s{n}", "ignore-sigterm", f"mark={mark}") for n in range(3)))
        child.kill()
        await child.wait()
        for pid in pids(mark):
            await until(lambda pid=pid: process_gone(pid))


@pytest.mark.system
async def test_a_root_that_cannot_be_used_is_said_in_one_line(tmp_path):
    (tmp_path / "root").write_text("a file")
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "protos")]),
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(tmp_path / "root"),
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.mcp_pool.main", env=environ, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(BOUND):
        _, said = await child.communicate()
    assert child.returncode == 1
    assert b"NYLORUN_HARNESS_ROOT" in said
    assert said.count(b"\n") == 1
