"""Processes: signals, exit codes, what reaches stderr. Real processes, because signals are theirs."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOUND_S = 30


def start(body: str, uvloop: bool) -> subprocess.Popen:
    program = (
        "import asyncio, sys\n"
        "from services.common.process import run_process, StartFailed\n"
        "from services.common.settings import SettingsError\n"
        "async def main(stop):\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n"
        f"sys.exit(run_process(main, {uvloop}))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=BOUND_S)
    return process.returncode, out, err


def ready(process: subprocess.Popen) -> None:
    assert process.stdout.readline() == "ready\n"


loops = pytest.mark.parametrize("uvloop", [False, True])


@loops
@pytest.mark.spec("operations:13.19")
def test_the_first_signal_stops_and_later_ones_are_ignored(uvloop):
    process = start(
        """
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.sleep(0.3)
        print("stopped", flush=True)
        """,
        uvloop,
    )
    ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (0, "stopped\n", "")


@loops
def test_a_start_that_fails_is_one_line_on_stderr_and_exit_1(uvloop):
    process = start('raise StartFailed("Can\'t listen.")', uvloop)
    assert finish(process) == (1, "", "Can't listen.\n")


def test_an_unexpected_fault_is_one_line_and_exit_1():
    code, _, err = finish(start('raise ValueError("boom")', False))
    assert (code, err) == (1, "ValueError: boom\n")


@loops
@pytest.mark.spec("operations:13.18")
def test_a_task_that_ignores_cancellation_does_not_keep_the_process(uvloop):
    process = start(
        """
        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        print("ready", flush=True)
        await stop.wait()
        """,
        uvloop,
    )
    ready(process)
    process.terminate()
    code, _, _ = finish(process)
    assert code == 0


def test_other_processes_of_the_user_cannot_read_the_environment():
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "from services.common.secrets import set_not_dumpable\n"
            "import ctypes\n"
            "print(set_not_dumpable(), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))",
        ],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=BOUND_S,
        check=True,
    )
    assert process.stdout == "True 0\n"
