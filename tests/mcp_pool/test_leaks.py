"""Many sessions: what they cost and that nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import psutil
import pytest

from services.common.group_keeper import COPIES
from services.mcp_pool.session import Session
from tests.mcp_pool.support import SERVERS, declared, process_gone, running, stdio

SESSIONS = 300
TINY = {"name": "tiny", "type": "stdio", "command": "sh", "args": [str(SERVERS / "tiny.sh")]}
SNAPSHOT = {"mcpTools": [{"capabilityId": "cap", "serverName": "tiny"}]}


def children():
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.slow
@pytest.mark.spec("mcp-pool:11.43")
async def test_three_hundred_sessions_leave_no_process_thread_or_descriptor(tmp_path):
    # What other tests left to the garbage collector closes now, not in between.
    gc.collect()
    me = psutil.Process()
    async with running(tmp_path) as warm:
        assert await warm.executor.reconnect(Session("t", "warm"), SNAPSHOT, [declared(TINY)]) == []
    before, threads, descriptors = children(), threading.active_count(), me.num_fds()
    async with running(tmp_path) as harness:
        sessions = [Session("t", f"s{n}") for n in range(SESSIONS)]
        async with asyncio.timeout(100):
            found = await asyncio.gather(
                *(harness.executor.reconnect(session, SNAPSHOT, [declared(TINY)]) for session in sessions)
            )
        assert not any(found)
        started = children() - before
        # And the keepers of their groups.
        assert len(started) == SESSIONS + COPIES
        assert threading.active_count() == threads
        assert (me.num_fds() - descriptors) / SESSIONS <= 4
        begun = time.monotonic()
        await harness.executor.close()
        assert time.monotonic() - begun < 8
    assert me.num_fds() <= descriptors
    assert threading.active_count() == threads
    assert all(process_gone(pid) for pid in started)


@pytest.mark.parametrize(
    "server",
    [
        stdio("bad", "exit=1"),
        stdio("bad", "version=1"),
        stdio("bad", "refuse=no"),
        stdio("bad", "list=empty-schema"),
        {"name": "bad", "type": "stdio", "command": "no-such-command"},
        {"name": "bad", "type": "stdio", "command": "/etc/passwd"},
    ],
    ids=["exits", "version", "refuses", "bad page", "missing", "not a program"],
)
async def test_failed_openings_leave_nothing(tmp_path, server):
    # What other tests left to the garbage collector closes now, not in between.
    gc.collect()
    me = psutil.Process()
    async with running(tmp_path) as warm:
        await warm.executor.reconnect(Session("t", "warm"), SNAPSHOT, [declared(TINY)])
    before, descriptors = children(), me.num_fds()
    async with running(tmp_path) as harness:
        for _ in range(3):
            await harness.discover({"capabilities": [{"id": "cap", "mcpServers": {"bad": server}}]})
        await harness.executor.close()
    assert me.num_fds() <= descriptors
    assert all(process_gone(pid) for pid in children() - before)
