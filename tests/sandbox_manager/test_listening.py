"""Sockets made inside of other network namespaces."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.sandbox_manager.bwrap import listening
from services.sandbox_manager.bwrap.listening import Listeners
from services.sandbox_manager.contract import BackendError
from tests.sandbox_manager.support import BOUND, identity, until


async def test_a_process_that_is_gone_is_an_error_and_the_next_request_is_served_alike() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    listeners = Listeners(identity())
    async with asyncio.timeout(BOUND):
        for _ in range(2):
            with pytest.raises(BackendError, match="way out can't be made"):
                await listeners.listen(ended.pid)
    ended.wait()
    listeners.close()


async def test_this_network_is_never_listened_in() -> None:
    listeners = Listeners(identity())
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendError):
            await listeners.listen(os.getpid())
    listeners.close()


async def test_a_helper_that_was_killed_is_started_again() -> None:
    listeners = Listeners(identity())
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendError):
            await listeners.listen(os.getpid())
        helper = listeners._helper
        assert helper is not None
        os.kill(helper._process.pid, signal.SIGKILL)
        with pytest.raises(BackendError, match=r"ended|Broken pipe|reset"):
            await listeners.listen(os.getpid())
        with pytest.raises(BackendError, match=r"Operation not permitted|Permission denied|Invalid"):
            await listeners.listen(os.getpid())
    listeners.close()


async def test_a_helper_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LISTEN_LIMIT_S", 0.2)
    listeners = Listeners(identity())
    helper = listening._Helper(listeners._identity)
    os.kill(helper._process.pid, signal.SIGSTOP)
    listeners._helper = helper
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendError, match="in time"):
            await listeners.listen(os.getpid())
    await until(lambda: not Path(f"/proc/{helper._process.pid}").exists())
    assert listeners._helper is None


async def test_the_helper_dies_with_its_parent() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from services.sandbox_manager.bwrap.listening import Listeners, _Helper\n"
        "helper = _Helper(Listeners(None)._identity)\n"
        "print(helper._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    await until(lambda: not Path(f"/proc/{pid}").exists())
