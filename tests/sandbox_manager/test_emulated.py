"""The emulated driver: its children, what it streams, what it shuts out."""

import asyncio
import os
import signal as signals
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from services.sandbox_manager.contract import Backend, BackendError, Handle
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.emulated import pool as pool_module
from services.sandbox_manager.emulated import wire
from services.sandbox_manager.emulated.driver import EmulatedBackend
from services.sandbox_manager.emulated.pool import ChildPool
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import BOUND, SECOND, UID, appears, identity, make_driver, output, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _shell(handle: Handle, command: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = await output(handle, "bash", command=command, **more)
    return result


def _children(backend: Backend) -> list[psutil.Process]:
    assert isinstance(backend, EmulatedBackend)
    return [psutil.Process(pid) for pid in backend.children.pids()]


# What is kept at a kill


@pytest.mark.parametrize(
    "command",
    [
        "echo a; echo b && sleep 30",
        "for i in a b; do echo $i; done; sleep 30",
        "for i in a b x; do test $i = x && sleep 30; echo $i; done",
        "(echo a; echo b; sleep 30)",
        "{ echo a; echo b; sleep 30; }",
        "f() { echo a; echo b; sleep 30; }; f",
        "echo a; if true; then echo b; sleep 30; fi",
        "echo a; while true; do echo b; sleep 30; done",
        "echo a | cat; echo $(echo b); sleep 30",
    ],
)
async def test_what_was_written_before_a_kill_is_kept(shell: Handle, command: str) -> None:
    result = await _shell(shell, command, timeout=0.5)
    assert (result["exitCode"], result["stdout"]) == (124, "a\nb\n")


async def test_what_goes_elsewhere_is_not_streamed(shell: Handle) -> None:
    result = await _shell(shell, "{ echo a; echo b >&2; } > f; x=$(echo c); echo d | tr d e; cat f; echo $x")
    assert (result["stdout"], result["stderr"]) == ("e\na\nc\n", "b\n")


# Fresh for each command


async def test_nothing_but_files_lives_on(shell: Handle) -> None:
    await _shell(shell, "x=1; f() { :; }; cd /tmp; alias ll=ls; set -e; export Y=2")
    result = await _shell(shell, 'echo "[$x][$Y]"; pwd; f; false; echo on')
    assert result["stdout"] == "[][]\n/workspace\non\n"
    assert "f: command not found" in result["stderr"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("f() { f; }; f", 1, ""),
        ("if", 2, ""),
        ("exit 3; echo no", 3, ""),
        ("set -u; echo $nothing", 1, "unbound"),
        ("python3 -c 1", 127, "python3: command not found"),
        ("curl http://x", 127, "curl: command not found"),
    ],
)
async def test_what_goes_wrong_is_the_command_s_own(
    shell: Handle, command: str, code: int, said: str
) -> None:
    result = await _shell(shell, command)
    assert result["exitCode"] == code
    assert said in result["stderr"]
    assert (await _shell(shell, "echo on"))["stdout"] == "on\n"


async def test_a_fault_of_a_command_does_not_end_the_script(shell: Handle) -> None:
    await shell.write("/workspace/f", b"\xff\xfe")
    result = await _shell(shell, "wc -m < f; base64 f; echo on")
    assert result["stdout"].endswith("on\n")


# Shut in


@pytest.mark.spec("sandbox-manager:19.25")
@pytest.mark.parametrize(
    "command",
    [
        "cat /etc/passwd",
        "ln -s /etc/passwd l; cat l",
        "ln -s /etc d; cat d/passwd",
        "cp /etc/passwd p",
        "ln /etc/passwd h",
        "cat ../../../../etc/passwd /workspace/../../etc/passwd",
        "cat /proc/self/environ /proc/1/environ",
        "source /etc/passwd",
        "tar -cf t.tar /etc",
        "cat < /etc/passwd",
        "sqlite3 :memory: \"attach '/etc/passwd' as x\"; false",
    ],
)
async def test_no_file_of_the_host_is_reached(shell: Handle, command: str) -> None:
    result = await _shell(shell, command)
    assert result["exitCode"] != 0
    assert "root:" not in result["stdout"]


@pytest.mark.parametrize(
    "command",
    [
        "echo x > /etc/motd",
        "echo x > /new",
        "mkdir /new",
        "rm -rf /workspace",
        "mv /workspace /tmp/w",
        "ln -s x /y",
    ],
)
async def test_nothing_is_written_outside(shell: Handle, command: str) -> None:
    assert (await _shell(shell, command))["exitCode"] != 0
    assert (await _shell(shell, "pwd; ls /"))["stdout"] == "/workspace\ntmp\nworkspace\n"


async def test_a_database_can_t_be_a_file_of_the_host(shell: Handle, tmp_path: Path) -> None:
    target = tmp_path / "made.db"
    for sql in (f"attach '{target}' as x; create table x.t(a)", f"vacuum into '{target}'"):
        await _shell(shell, f'sqlite3 :memory: "{sql}"')
        assert not target.exists()


async def test_links_hold_what_was_written_into_them(shell: Handle) -> None:
    await _shell(shell, "ln -s /workspace/a x; ln -s ../b y; ln -s no/such z")
    assert (await _shell(shell, "readlink x; readlink y; readlink z"))[
        "stdout"
    ] == "/workspace/a\n../b\nno/such\n"
    await _shell(shell, "echo t > a; rm y; rm -rf z x; cat a; ls")
    assert (await _shell(shell, "ls"))["stdout"] == "a\n"


async def test_children_have_given_up_what_they_don_t_need(tmp_path_factory: pytest.TempPathFactory) -> None:
    pool = ChildPool(tmp_path_factory.mktemp("root"), identity())
    await pool.warm()
    (pid,) = pool.pids()
    status = _status(pid)
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == [str(UID if os.geteuid() == 0 else os.geteuid())] * 4
    if os.geteuid() == 0:
        assert psutil.Process(pid).environ() == {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    await pool.close()


def _status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


# Children


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatedBackend]:
    """A driver whose children a test may kill."""
    backend = make_driver("emulated", tmp_path_factory.mktemp("root"))
    assert isinstance(backend, EmulatedBackend)
    assert (await backend.probe()).available
    yield backend
    await backend.close()


async def test_one_child_is_ready_and_another_one_comes_with_work(own: EmulatedBackend) -> None:
    opened = await own.open(spec(fresh_key()))
    assert len(_children(own)) == 1
    await _shell(opened, "true")
    assert 1 <= len(_children(own)) <= 2
    opened.release()


async def test_there_are_never_more_than_four_children(own: EmulatedBackend) -> None:
    opened = [await own.open(spec(fresh_key())) for _ in range(12)]
    async with asyncio.timeout(BOUND * 2):
        results = await asyncio.gather(*(_shell(handle, "sleep 0.05; echo ok") for handle in opened))
    assert [result["stdout"] for result in results] == ["ok\n"] * 12
    assert len(_children(own)) <= 4
    for handle in opened:
        handle.release()


async def test_a_killed_child_costs_its_own_command_and_no_other(own: EmulatedBackend) -> None:
    opened = await own.open(spec(fresh_key()))
    running = asyncio.create_task(opened.exec("touch began; sleep 30", SECOND, Signal()))
    await appears(opened, "began")
    for child in _children(own):
        child.send_signal(signals.SIGKILL)
    with pytest.raises(BackendError, match="ended in the middle"):
        await running
    assert (await _shell(opened, "echo on"))["stdout"] == "on\n"
    opened.release()


async def test_an_idle_child_that_died_is_replaced(own: EmulatedBackend) -> None:
    opened = await own.open(spec(fresh_key()))
    await _shell(opened, "true")
    for child in _children(own):
        child.send_signal(signals.SIGKILL)
    assert (await _shell(opened, "echo on"))["stdout"] == "on\n"
    opened.release()


async def test_a_child_that_keeps_too_much_memory_is_replaced(
    own: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RESIDENT_BYTES", 1)
    opened = await own.open(spec(fresh_key()))
    before = {child.pid for child in _children(own)}
    await _shell(opened, "true")
    await _shell(opened, "true")
    assert before.isdisjoint(child.pid for child in _children(own))
    opened.release()


async def test_a_command_that_wants_too_much_memory_fails_alone(own: EmulatedBackend) -> None:
    opened = await own.open(spec(fresh_key()))
    result = await _shell(opened, "x=0123456789; while true; do x=$x$x$x$x; done", timeout=25)
    assert result["exitCode"] != 0
    assert (await _shell(opened, "echo on"))["stdout"] == "on\n"
    opened.release()


async def test_closing_leaves_no_child(tmp_path: Path) -> None:
    pool = ChildPool(tmp_path, identity())
    await pool.warm()
    (pid,) = pool.pids()
    async with asyncio.timeout(BOUND):
        await pool.close()
    assert not psutil.pid_exists(pid)


async def test_a_child_that_can_t_start_is_said_in_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_MODULE", "no.such.module")
    backend = EmulatedBackend(WorkspaceDisk(tmp_path, identity()))
    probe = await backend.probe()
    assert not probe.available
    assert "ended while it was started" in (probe.reason or "")
    await backend.close()


@pytest.mark.spec("sandbox-manager:19.11")
async def test_hosts_by_suffix_can_t_be_met(emulated: Backend) -> None:
    assert emulated.unmet(spec(network={"allow": ["a.org"]})) is None
    assert "suffix" in (emulated.unmet(spec(network={"allow": ["*.x.org"]})) or "")


# The wire


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_messages_come_out_whole_however_they_are_cut(size: int) -> None:
    sent = [(wire.STDOUT, b"a" * 9), (wire.STDERR, b""), (wire.END, b'{"exitCode":0}')]
    data = b"".join(wire.message(kind, content) for kind, content in sent)
    reader, came = wire.Reader(), list[tuple[bytes, bytes]]()
    for at in range(0, len(data), size):
        came += reader.feed(data[at : at + size])
    assert came == sent


# What the library gets wrong


@pytest.mark.parametrize(
    ("command", "stdout", "stderr"),
    [
        ("seq 3 | xargs -I{} echo n{}", "n1\nn2\nn3\n", ""),
        ("seq 3 | xargs -n1 echo n", "n 1\nn 2\nn 3\n", ""),
        ("printf 'a b\\0c\\0' | xargs -0r -n1 echo", "a b\nc\n", ""),
        ("seq 2 | xargs -L1 echo", "", "xargs: the emulated command does not know -L1\n"),
        ("echo x > /dev/stderr", "", "x\n"),
        ("{ echo a; echo b; } > /dev/stderr; echo c >> /dev/stdout", "c\n", "a\nb\n"),
        (r"printf '\303\251\n'", "é\n", ""),
        (
            "printf 'a 3\\nb 9\\n' > f; awk '$2 > 5 {print $1 > \"g\"}' f; cat g; awk 'NR==1' f",
            "b\na 3\n",
            "",
        ),
        (r"printf '\x41\t\101\n'", "A\tA\n", ""),
    ],
)
async def test_it_is_as_in_bash(shell: Handle, command: str, stdout: str, stderr: str) -> None:
    result = await _shell(shell, command)
    assert (result["stdout"], result["stderr"]) == (stdout, stderr)


async def test_printf_writes_bytes(shell: Handle) -> None:
    await _shell(shell, r"printf 'a\xff\377\n' > f")
    assert await shell.read_bytes("/workspace/f", 10) == b"a\xff\xff\n"


async def test_a_command_may_use_a_processor_for_a_bounded_time(emulated: Backend, shell: Handle) -> None:
    await _shell(shell, "true")
    limits = [Path(f"/proc/{child.pid}/limits").read_text() for child in _children(emulated)]
    softs = [line.split()[3] for text in limits for line in text.splitlines() if line.startswith("Max cpu")]
    assert any(soft.isdigit() and 660 <= int(soft) < 800 for soft in softs), softs
