"""Process groups: who is left, and whom a signal may reach."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from services.common import process_groups
from services.common.process_groups import ProcessGroup

BOUND = 30


@pytest.fixture
def leader():
    """A process that leads a group and waits for the end of its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-I", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    yield process
    process.stdin.close()
    process.kill()
    process.wait(BOUND)


def end(process):
    process.stdin.close()
    process.wait(BOUND)


def test_a_group_is_alive_while_its_leader_was_not_reaped(leader):
    group = ProcessGroup(leader.pid)
    assert group.alive()
    assert group.signal(0)


def test_a_group_without_members_is_gone_and_never_signalled_again(leader, monkeypatch):
    group = ProcessGroup(leader.pid)
    end(leader)
    group.leader_gone()
    assert not group.alive()
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("signalled a group that was seen empty"))
    assert not group.signal(signal.SIGKILL)
    assert not group.alive()


def test_a_signal_that_finds_nobody_ends_the_group(leader):
    group = ProcessGroup(leader.pid)
    end(leader)
    group.leader_gone()
    assert not group.signal(signal.SIGTERM)
    assert not group.alive()


def test_members_of_somebody_else_count_as_alive_but_are_not_reached(leader, monkeypatch):
    def refuse(*_):
        raise PermissionError

    group = ProcessGroup(leader.pid)
    group.leader_gone()
    monkeypatch.setattr(os, "killpg", refuse)
    assert not group.signal(signal.SIGTERM)
    assert group.alive()


def test_a_group_of_ended_members_that_nobody_reaped_is_gone(leader, monkeypatch):
    # The leader ends and stays unreaped: the kernel still finds the group.
    group = ProcessGroup(leader.pid)
    leader.stdin.close()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(leader.pid, 0)
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    group.leader_gone()
    assert not group.alive()


def test_without_proc_the_kernels_word_counts(leader, monkeypatch):
    def missing(*_):
        raise FileNotFoundError

    group = ProcessGroup(leader.pid)
    group.leader_gone()
    monkeypatch.setattr(os, "listdir", missing)
    monkeypatch.setattr(process_groups, "_groups", process_groups._RunningGroups())
    assert group.alive()


def test_one_reading_serves_groups_that_ended_before_it(leader, monkeypatch):
    readings = []
    real = process_groups._read_groups
    monkeypatch.setattr(process_groups, "_read_groups", lambda: readings.append(1) or real())
    monkeypatch.setattr(process_groups, "_groups", process_groups._RunningGroups())
    monkeypatch.setattr(process_groups, "LOOK_AGAIN_SECONDS", BOUND)
    group = ProcessGroup(leader.pid)
    group.leader_gone()
    assert group.alive()
    assert group.alive()
    assert len(readings) == 1
