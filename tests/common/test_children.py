"""Child processes: how they start, what they are given, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from services.common.child_start import death_signal_prefix, find_executable
from services.common.children import (
    Child,
    ChildNotStarted,
    ChildSpec,
    StopGrace,
    StreamName,
    start_child,
)

QUICK = StopGrace(after_stdin=0.2, after_terminate=0.2, after_kill=5)
PATIENT = StopGrace(after_stdin=20, after_terminate=20, after_kill=20)
BOUND = 30


class Heard:
    """Keeps what a child said and lets a test wait for it."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.ended: list[str] = []
        self.codes: list[int] = []
        self._changed = asyncio.Event()

    def child_output(self, stream: StreamName, data: bytes) -> None:
        self.said[stream] += data
        self._changed.set()

    def child_output_ended(self, stream: StreamName) -> None:
        self.ended.append(stream)
        self._changed.set()

    def child_exited(self, returncode: int) -> None:
        self.codes.append(returncode)
        self._changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(BOUND):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def line(self) -> str:
        await self.until(lambda heard: b"\n" in heard.said["stdout"])
        return self.said["stdout"].split(b"\n")[0].decode()


def python(code: str, *args: str, **options) -> ChildSpec:
    argv = [sys.executable, "-S", "-I", "-c", textwrap.dedent(code), *args]
    return ChildSpec(argv=argv, environment=options.pop("environment", {}), **options)


def process_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(BOUND):
        while not process_gone(pid):  # noqa: ASYNC110 - the system tells nobody
            await asyncio.sleep(0.01)


async def test_child_gets_exactly_the_environment_it_is_given(monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_OURS", "x")
    heard = Heard()
    spec = ChildSpec(argv=["env"], environment={"PATH": "/usr/bin:/bin", "GIVEN": "1"})
    child = await start_child(spec, heard)
    await heard.until(lambda h: h.ended and h.codes)
    assert set(heard.said["stdout"].decode().split()) == {"PATH=/usr/bin:/bin", "GIVEN=1"}
    assert await child.stop() == 0


async def test_child_leads_a_session_and_group_of_its_own():
    heard = Heard()
    child = await start_child(
        python("import os; print(os.getpid(), os.getpgid(0), os.getsid(0))", stderr="stdout"), heard
    )
    assert await heard.line() == f"{child.pid} {child.pid} {child.pid}"
    await child.stop(QUICK)


async def test_output_streams_are_told_apart_or_merged():
    code = "import os; os.write(1, b'out'); os.write(2, b'err')"
    apart, merged = Heard(), Heard()
    children = [
        await start_child(python(code, stderr="pipe"), apart),
        await start_child(python(code, stderr="stdout"), merged),
    ]
    await apart.until(lambda h: len(h.ended) == 2)
    await merged.until(lambda h: h.ended)
    assert apart.said == {"stdout": b"out", "stderr": b"err"}
    assert merged.said["stdout"] == b"outerr"
    for child in children:
        await child.stop(QUICK)


async def test_stop_ends_stdin_first_and_waits_for_the_child_to_leave_by_itself():
    heard = Heard()
    code = "import sys; print('up', flush=True); sys.stdin.read(); print('bye', flush=True); sys.exit(7)"
    child = await start_child(python(code), heard)
    await heard.line()
    assert await child.stop(PATIENT) == 7
    assert b"bye" in heard.said["stdout"]
    assert heard.codes == [7]


async def test_stop_terminates_a_child_that_ignores_the_end_of_stdin():
    heard = Heard()
    child = await start_child(python("import time; print('up', flush=True); time.sleep(600)"), heard)
    await heard.line()
    assert await child.stop(QUICK) == -signal.SIGTERM


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "fork" in sys.argv:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
    if pid and "leave" in sys.argv:
        os._exit(0)
else:
    print("up", flush=True)
time.sleep(600)
"""


async def test_stop_kills_a_child_that_ignores_sigterm():
    heard = Heard()
    child = await start_child(python(STUBBORN), heard)
    await heard.line()
    assert await child.stop(QUICK) == -signal.SIGKILL


@pytest.mark.parametrize("leader", ["stay", "leave"])
async def test_stop_reaches_grandchildren_also_when_their_parent_has_left(leader):
    heard = Heard()
    child = await start_child(python(STUBBORN, "fork", leader), heard)
    grandchild = int(await heard.line())
    if leader == "leave":
        await heard.until(lambda h: h.codes)
        assert child.group_alive()
    await child.stop(QUICK)
    await until_gone(grandchild)
    assert not child.group_alive()
    assert not child.signal_group(signal.SIGTERM)


async def test_a_grandchild_gets_time_to_clean_up_after_sigterm(tmp_path):
    code = """
    import os, signal, sys, time
    def leave(*_):
        open(sys.argv[1], "w").close(); os._exit(0)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, leave)
        print("up", flush=True)
        time.sleep(600)
    sys.stdin.read()
    """
    heard = Heard()
    mark = tmp_path / "cleaned"
    child = await start_child(python(code, str(mark)), heard)
    await heard.line()
    assert await child.stop(PATIENT) == 0
    assert mark.exists()


async def test_stop_when_cancelled_kills_at_once():
    heard = Heard()
    child = await start_child(python(STUBBORN), heard)
    await heard.line()
    stopping = asyncio.create_task(child.stop(PATIENT))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    async with asyncio.timeout(BOUND):
        assert await child.wait() == -signal.SIGKILL


async def test_stop_twice_at_once_gives_both_the_exit_code():
    heard = Heard()
    child = await start_child(python("import sys; sys.stdin.read()"), heard)
    assert await asyncio.gather(child.stop(PATIENT), child.stop(PATIENT)) == [0, 0]


async def test_writing_to_a_child_that_does_not_read_only_buffers():
    heard = Heard()
    child = await start_child(python("import time; print('up', flush=True); time.sleep(600)"), heard)
    await heard.line()
    assert child.write(b"x" * 1_000_000)
    assert child.unwritten > 500_000
    await child.stop(QUICK)
    assert not child.stdin_open
    assert not child.write(b"x")


async def test_a_child_that_closes_its_stdin_is_noticed():
    heard, closed = Heard(), asyncio.Event()
    child = await start_child(
        python("import os, time; os.close(0); print('up', flush=True); time.sleep(600)"), heard, closed.set
    )
    async with asyncio.timeout(BOUND):
        await closed.wait()
    assert not child.stdin_open
    await heard.line()
    await child.stop(QUICK)


async def test_paused_output_stays_in_the_pipe():
    heard = Heard()
    code = "import sys; sys.stdin.readline(); print('x', flush=True); sys.stdin.read()"
    child = await start_child(python(code), heard)
    child.pause_output("stdout")
    child.write(b"go\n")
    await asyncio.sleep(0.1)
    assert heard.said["stdout"] == b""
    child.resume_output("stdout")
    assert await heard.line() == "x"
    await child.stop(QUICK)


async def test_passed_descriptors_keep_their_numbers():
    reading, writing = os.pipe()
    try:
        heard = Heard()
        child = await start_child(
            python(f"import os; os.write({writing}, b'hi')", pass_fds=(writing,)), heard
        )
        await heard.until(lambda h: h.codes)
        assert os.read(reading, 10) == b"hi"
        await child.stop(QUICK)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["no-such-command-here"], "was not found in PATH"),
        (["./missing"], "does not exist"),
        (["/etc/passwd"], "is not executable"),
        (["/bin"], "does not exist"),
        ([""], "empty"),
        (["sh", "a\0b"], "cannot pass"),
        (["sh", "\ud800"], "cannot pass"),
        (["sh", *["x" * 100_000] * 50], "too long"),
    ],
)
async def test_a_command_that_cannot_start_says_why(argv, says, tmp_path):
    spec = ChildSpec(argv=argv, environment={"PATH": "/usr/bin:/bin"}, cwd=str(tmp_path))
    with pytest.raises(ChildNotStarted, match=says) as caught:
        await start_child(spec, Heard())
    assert "xxxx" not in str(caught.value)


async def test_a_missing_working_directory_is_named(tmp_path):
    spec = ChildSpec(argv=["true"], environment={"PATH": "/bin"}, cwd=str(tmp_path / "gone"))
    with pytest.raises(ChildNotStarted, match="working directory"):
        await start_child(spec, Heard())


def test_command_with_a_slash_is_found_from_the_working_directory(tmp_path):
    program = tmp_path / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_executable("./run", {}, str(tmp_path)) == f"{tmp_path}/./run"
    assert find_executable("run", {"PATH": str(tmp_path)}, None) == str(program)


async def test_children_leave_no_descriptor_thread_or_process_behind():
    me = psutil.Process()
    warm = await start_child(python("pass"), Heard())
    await warm.stop(PATIENT)
    descriptors, threads = me.num_fds(), threading.active_count()
    children: list[Child] = []
    for code in ("import sys; sys.stdin.read()", "pass", STUBBORN):
        for _ in range(3):
            heard = Heard()
            children.append(await start_child(python(code, stderr="pipe"), heard))
    assert threading.active_count() <= threads
    await asyncio.gather(*(child.stop(QUICK) for child in children))
    await asyncio.sleep(0)
    assert me.num_fds() <= descriptors
    assert not [process for process in me.children() if process.pid in {child.pid for child in children}]


@pytest.mark.faults
@pytest.mark.skipif(not death_signal_prefix(), reason="needs setpriv of util-linux")
async def test_children_die_with_a_parent_that_is_killed(tmp_path):
    owner = tmp_path / "owner.py"
    owner.write_text(
        textwrap.dedent(
            """
            import asyncio, sys
            from services.common.children import ChildSpec, start_child
            class Deaf:
                def child_output(self, stream, data): pass
                def child_output_ended(self, stream): pass
                def child_exited(self, returncode): pass
            async def main():
                code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
                child = await start_child(ChildSpec([sys.executable, "-c", code], {}), Deaf())
                print(child.pid, flush=True)
                await asyncio.sleep(600)
            asyncio.run(main())
            """
        )
    )
    repository = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(owner), stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(repository)}
    )
    async with asyncio.timeout(BOUND):
        child_pid = int(await process.stdout.readline())
        assert not process_gone(child_pid)
        process.kill()
        await process.wait()
    await until_gone(child_pid)


def test_the_child_watcher_starts_no_thread():
    script = textwrap.dedent(
        """
        import asyncio, threading
        from services.common.process import install_child_watcher
        async def main():
            process = await asyncio.create_subprocess_exec("sleep", "60")
            print(threading.active_count())
            process.kill()
            await process.wait()
        install_child_watcher()
        asyncio.run(main())
        """
    )
    import subprocess

    repository = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
        env={"PYTHONPATH": str(repository), "PATH": os.environ["PATH"]},
    )
    assert done.stdout.strip() == "1"


async def test_without_setpriv_children_start_all_the_same(monkeypatch):
    monkeypatch.setattr("services.common.child_start.death_signal_prefix", lambda: ())
    heard = Heard()
    child = await start_child(python("import sys; print('up', flush=True); sys.stdin.read()"), heard)
    assert await heard.line() == "up"
    assert await child.stop(PATIENT) == 0


async def test_without_setpriv_a_file_that_is_no_program_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("services.common.child_start.death_signal_prefix", lambda: ())
    program = tmp_path / "data"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    with pytest.raises(ChildNotStarted, match="not a program"):
        await start_child(ChildSpec(argv=[str(program)], environment={}), Heard())


def test_setpriv_that_is_missing_or_too_old_is_not_used(monkeypatch, tmp_path):
    probe = death_signal_prefix.__wrapped__
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert probe() == ()
    old = tmp_path / "setpriv"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(old))
    assert probe() == ()
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(tmp_path / "gone"))
    assert probe() == ()


async def test_without_pidfds_a_thread_waits_for_the_exit(monkeypatch):
    def refuse(_):
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    heard = Heard()
    child = await start_child(python("import sys; sys.stdin.read(); sys.exit(4)"), heard)
    assert await child.stop(PATIENT) == 4
    assert heard.codes == [4]


async def test_a_cancelled_start_leaves_no_process(monkeypatch):
    stuck, started = asyncio.Event(), []

    async def never(*_):
        await stuck.wait()

    real = Child._watch_exit
    monkeypatch.setattr(Child, "_watch_exit", lambda child: (started.append(child.pid), real(child)))
    monkeypatch.setattr(asyncio.get_running_loop(), "connect_read_pipe", never)
    starting = asyncio.create_task(start_child(python("import time; time.sleep(600)"), Heard()))
    async with asyncio.timeout(BOUND):
        while not started:  # noqa: ASYNC110 - the pipe is never connected
            await asyncio.sleep(0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until_gone(started[0])


def test_children_work_on_uvloop_too():
    uvloop = pytest.importorskip("uvloop")

    async def whole_life() -> tuple[int | None, bytes]:
        heard = Heard()
        child = await start_child(
            python("import sys; print(sys.stdin.readline().strip(), flush=True); sys.stdin.read()"), heard
        )
        child.write(b"hello\n")
        await heard.line()
        return await child.stop(PATIENT), heard.said["stdout"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(whole_life()) == (0, b"hello\n")
