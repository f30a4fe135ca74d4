"""What killed pools left: found by their files and ended, and that of pools which run is spared."""

from __future__ import annotations

import os
import subprocess

import pytest

from services.mcp_pool.launch import HarnessRoot
from services.mcp_pool.leftovers import PREFIX, leave_trace
from tests.mcp_pool.support import BOUND, process_gone, until


@pytest.fixture
def root(tmp_path):
    place = HarnessRoot(str(tmp_path))
    place.create()
    return place


@pytest.fixture
def orphan(root):
    """A process in a group whose leader is gone, with a server's environment."""
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PLUGIN_DATA": root.data_of("cap")},
        start_new_session=True,
    ) as leader:
        pid = int(leader.stdout.readline())
        leader.wait(BOUND)
    yield pid
    if not process_gone(pid):
        os.kill(pid, 9)


def files(root):
    return {name for name in os.listdir(root.path) if name.startswith(PREFIX)}


async def test_a_file_that_nobody_holds_lets_what_is_left_be_ended(root, orphan):
    left = f"{PREFIX}left"
    (open(os.path.join(root.path, left), "w")).close()
    trace = leave_trace(root)
    await until(lambda: process_gone(orphan))
    assert left not in files(root)
    trace.remove()
    assert not files(root)


def test_nothing_is_ended_after_clean_stops_or_beside_a_pool_that_runs(root, orphan):
    leave_trace(root).remove()
    first = leave_trace(root)
    second = leave_trace(root)
    assert files(root) == {first.path.name, second.path.name}
    assert not process_gone(orphan)
    for trace in (first, second, first):
        trace.remove()
    assert not files(root)


def test_a_root_that_takes_no_file_has_no_trace(tmp_path):
    trace = leave_trace(HarnessRoot(str(tmp_path / "missing")))
    assert trace.path is None
    trace.remove()
