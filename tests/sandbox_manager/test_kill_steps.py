"""A manager that is killed at any step loses nothing and leaves nothing half."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.mark.faults
def test_a_kill_before_any_step_on_the_disk_loses_nothing() -> None:
    # In memory, where syncing takes no time: what survives a power cut is not the question here.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.sandbox_manager.kill_steps", folder],
            capture_output=True, text=True, check=False, timeout=110, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 60
