"""The real process: how it starts, how it ends, and that it takes its children along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import psutil
import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from services.common.channel import bearer, open_channel
from services.common.child_start import death_signal_prefix
from services.common.group_keeper import COPIES, SCRIPT
from services.mcp_pool.leftovers import PREFIX
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
@pytest.mark.faults
@pytest.mark.skipif(not death_signal_prefix(), reason="needs setpriv of util-linux")
async def test_what_servers_started_ends_with_the_pool_and_a_keeper_or_with_the_next_pool(tmp_path):
    mark = tmp_path / "pids"
    async with process(tmp_path) as (child, address):
        await open_servers(address, stdio("parent", "with-child", f"mark={mark}"))
        await until(lambda: len(pids(mark)) == 2)
        _kill_at_once(child, _keepers(child)[:1])
        await child.wait()
        for pid in pids(mark):
            await until(lambda pid=pid: process_gone(pid))
    mark.unlink()
    async with process(tmp_path) as (child, address):
        await open_servers(address, stdio("parent", "with-child", f"mark={mark}"))
        await until(lambda: len(pids(mark)) == 2)
        server = psutil.Process(child.pid).children()
        _kill_at_once(child, _keepers(child))
        await child.wait()
        (grandchild,) = set(pids(mark)) - {one.pid for one in server}
        await until(lambda: all(process_gone(one.pid) for one in server))
        assert not process_gone(grandchild)
    async with process(tmp_path) as (child, _):
        await until(lambda: process_gone(grandchild))
        assert len(list((tmp_path / "root").glob(f"{PREFIX}*"))) == 1
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            assert await child.wait() == 0
        assert not list((tmp_path / "root").glob(f"{PREFIX}*"))


def _keepers(child):
    found = [process for process in psutil.Process(child.pid).children() if str(SCRIPT) in process.cmdline()]
    assert len(found) == COPIES
    return found


def _kill_at_once(child, others):
    # Stopped, it can't do anything about what is killed before it.
    child.send_signal(signal.SIGSTOP)
    for other in others:
        other.kill()
    child.kill()


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
