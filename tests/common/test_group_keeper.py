"""Groups end with their owner: the keeper's list, its end, its successor, and an owner that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from services.common import group_keeper
from services.common.child_start import death_signal_prefix
from services.common.children import ChildSpec, StopGrace, start_child
from services.common.group_keeper import COPIES, SCRIPT, GroupKeeper, GroupKeepers
from services.common.group_keeper_process import note, unnamed
from tests.common.support import BOUND_S, until

SLEEPER = ("sh", "-c", "sleep 600 & sleep 600")
GRACE = StopGrace(after_stdin=0, after_terminate=2, after_kill=2)


class Nobody:
    def child_output(self, stream, data):
        pass

    child_output_ended = child_exited = child_output


async def sleeper(keeper):
    """A group of three processes."""
    child = await start_child(ChildSpec(SLEEPER, dict(os.environ)), Nobody(), keeper=keeper)
    await until(lambda: len(psutil.Process(child.pid).children()) == 2)
    return child


def alive(group):
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.fixture
async def keeper():
    keeper = GroupKeeper()
    yield keeper
    async with asyncio.timeout(BOUND_S):
        await keeper.close()
    assert keeper.pid is None


def test_lines_add_and_take_out():
    groups = {7}
    assert not note(groups, [b"+1", b"+2", b"-1", b"-9"])
    assert groups == {2, 7}
    assert note(groups, [b"."])


def test_a_line_that_was_cut_short_kills_nobody():
    with subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL) as bystander:
        text = f"+999999999\n+{bystander.pid}".encode()
        done = subprocess.run(
            [sys.executable, "-S", "-I", str(SCRIPT)], input=text, timeout=BOUND_S, check=True
        )
        assert done.returncode == 0
        assert bystander.poll() is None
        bystander.kill()


async def test_there_is_no_keeper_before_there_is_a_group(keeper):
    assert keeper.pid is None


async def test_a_group_is_kept_until_its_last_member_is_gone(keeper):
    child = await sleeper(keeper)
    assert keeper.groups == {child.pid}
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert keeper.groups == {child.pid}
    await child.stop(GRACE)
    assert keeper.groups == frozenset()


async def test_a_keeper_that_ends_kills_what_is_left(keeper):
    child = await sleeper(keeper)
    await keeper.close()
    await until(lambda: not alive(child.pid))
    await child.stop(GRACE)


async def test_a_keeper_is_not_ended_by_signals_that_ask(keeper):
    child = await sleeper(keeper)
    pid = keeper.pid
    await until(lambda: _ignores(pid, signal.SIGTERM))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    os.kill(child.pid, 0)
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    await child.stop(GRACE)


def _ignores(pid, number):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) & (1 << (number - 1)))
    return False


async def test_a_keeper_that_is_killed_has_a_successor_with_the_whole_list(keeper, monkeypatch):
    monkeypatch.setattr(group_keeper, "PAUSE_SECONDS", 0.01)
    first, second = await sleeper(keeper), await sleeper(keeper)
    pid = keeper.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: keeper.pid not in (None, pid))
    await keeper.close()
    await until(lambda: not alive(first.pid) and not alive(second.pid))
    for child in (first, second):
        await child.stop(GRACE)


async def test_each_of_several_keepers_knows_every_group(monkeypatch):
    monkeypatch.setattr(group_keeper, "PAUSE_SECONDS", 0.01)
    keepers = GroupKeepers()
    child = await sleeper(keepers)
    gone = await sleeper(keepers)
    await gone.stop(GRACE)
    first = keepers.pids
    assert len(first) == COPIES
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: len(keepers.pids) == COPIES and not keepers.pids & first)
    async with asyncio.timeout(BOUND_S):
        await keepers.close()
    assert not keepers.pids
    await until(lambda: not alive(child.pid))
    await child.stop(GRACE)


async def test_a_keeper_that_does_not_read_is_replaced(keeper, monkeypatch):
    monkeypatch.setattr(group_keeper, "PAUSE_SECONDS", 0.01)
    child = await sleeper(keeper)
    pid = keeper.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(1_000_000, 1_020_000):
        keeper.add(number)
        keeper.remove(number)
    await until(lambda: keeper.pid not in (None, pid))
    await keeper.close()
    await until(lambda: not alive(child.pid))
    await child.stop(GRACE)


async def test_a_keeper_that_can_not_be_started_is_tried_again(keeper, monkeypatch):
    monkeypatch.setattr(group_keeper, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    child = await sleeper(keeper)
    assert keeper.pid is None
    monkeypatch.undo()
    await until(lambda: keeper.pid is not None)
    assert keeper.groups == {child.pid}
    await child.stop(GRACE)


async def test_a_keeper_is_small(keeper):
    child = await sleeper(keeper)
    await until(lambda: _ignores(keeper.pid, signal.SIGTERM))
    assert psutil.Process(keeper.pid).memory_info().rss < 16 * 1024 * 1024
    await child.stop(GRACE)


OWNER = """
import asyncio, json, os, sys
from services.common.children import ChildSpec, start_child
from services.common.group_keeper import GroupKeeper

class Nobody:
    def child_output(self, stream, data): print(data.decode(), end="", flush=True)
    def child_output_ended(self, stream): pass
    child_exited = child_output_ended

async def main():
    keeper = GroupKeeper()
    code = "trap '' TERM; (trap '' TERM; sleep 600 & sleep 600) & echo; wait"
    children = [
        await start_child(ChildSpec(("sh", "-c", code), dict(os.environ)), Nobody(), keeper=keeper)
        for _ in range(5)
    ]
    print(json.dumps([child.pid for child in children]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.system
@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
async def test_nobody_of_a_group_outlives_an_owner_that_is_killed(how):
    assert death_signal_prefix()
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        groups = []
        async with asyncio.timeout(BOUND_S):
            while not groups:
                line = (await owner.stdout.readline()).strip()
                groups = json.loads(line) if line else []
        await until(lambda: all(len(alive(group)) >= 3 for group in groups))
        began = time.monotonic()
        owner.send_signal(how)
        await owner.wait()
        await until(lambda: not any(alive(group) for group in groups))
        assert time.monotonic() - began < 15
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()


def orphan(tag, mark_value, *, leader_lives):
    """A group whose leader has ended, or not, with a variable in its environment; the pid of the member."""
    code = f"sleep 600 & echo $!; {'wait' if leader_lives else ''}"
    leader = subprocess.Popen(
        ["sh", "-c", code],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, tag: mark_value},
    )
    member = int(leader.stdout.readline())
    leader.stdout.close()
    if not leader_lives:
        leader.wait(BOUND_S)
    return leader, member


def test_groups_that_were_never_named_are_known_by_their_mark_and_the_end_of_their_parent(tmp_path):
    tag = f"MARK_{os.getpid()}"
    lost, _ = orphan(tag, f"{tmp_path}/a", leader_lives=False)
    kept, _ = orphan(tag, f"{tmp_path}/b", leader_lives=True)
    stranger, _ = orphan(tag, "/elsewhere/a", leader_lives=False)
    mark = f"{tag}={tmp_path}/".encode()
    try:
        assert unnamed(mark, 1) == {lost.pid}
        assert unnamed(mark, os.getpid()) == {lost.pid, kept.pid}
    finally:
        for group in (lost, kept, stranger):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group.pid, signal.SIGKILL)
        kept.wait(BOUND_S)


@pytest.mark.parametrize(("said", "killed"), [(b"", True), (b".\n", False)], ids=["cut off", "told all"])
def test_what_was_never_named_is_killed_when_the_owner_had_no_time_to_tell(tmp_path, said, killed):
    tag = f"MARK_{os.getpid()}"
    lost, member = orphan(tag, f"{tmp_path}/a", leader_lives=False)
    try:
        subprocess.run(
            [sys.executable, "-S", "-I", str(SCRIPT), f"{tag}={tmp_path}/"],
            input=said,
            timeout=BOUND_S,
            check=True,
        )
        assert _gone(member) is killed
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(lost.pid, signal.SIGKILL)


def _gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
