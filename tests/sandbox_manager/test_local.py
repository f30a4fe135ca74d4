"""The driver of pods: what the suite of all drivers does not say."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.local.driver import LocalBackend, LocalHandle, baseline
from services.sandbox_manager.main import backend_of
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.operations import Call, SessionRef
from services.sandbox_manager.records import load_records
from services.sandbox_manager.settings import read_settings
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.support import (
    BOUND,
    LOCAL_NAME,
    SECOND,
    TENANT,
    Clock,
    output,
    spec,
    tool,
    until,
)

SERVICE = {
    "PATH": "/opt/bin:/usr/bin:/bin", "LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "Europe/Berlin",
    "HOME": "/root", "NYLORUN_SANDBOX_JOIN_FILE": "/run/token", "HTTP_PROXY": "http://a:1",
    "LC_PROXY": "x", "AWS_SECRET": "s",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pod"
    made.mkdir()
    return made


@pytest_asyncio.fixture
async def pod(folder: Path) -> AsyncIterator[LocalHandle]:
    backend = LocalBackend(baseline(SERVICE), folder)
    assert (await backend.probe()).available
    yield await backend.open(spec())
    await backend.close()


async def _shell(handle: LocalHandle, command: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = await output(handle, "bash", command=command, **more)
    return result


def _alive(marker: str) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cmdline"]) if marker in (one.info["cmdline"] or [])]


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_suite_of_all_drivers_passes_in_a_system_like_a_pod() -> None:
    words = [sys.executable, "-m", "tests.sandbox_manager.pod_root", sys.executable, "-m", "pytest", "-q"]
    suite = ["tests/sandbox_manager/test_conformance.py", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*words, *suite],
        env={**os.environ, LOCAL_NAME: "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=250, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if "unshare" in ran.stderr and not ran.stdout:
        pytest.skip(f"no root of its own can be made here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    last = ran.stdout.strip().splitlines()[-1]
    assert int(last.split(" passed")[0].split()[-1]) > 35
    skipped = [line for line in ran.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("the driver lacks network_rules" in line or "lacks list_remove" in line for line in skipped)


@pytest.mark.spec("pod-mode:10.15", "pod-mode:10.24")
async def test_the_environment_of_a_command_is_made_of_parts(folder: Path) -> None:
    pairs: list[dict[str, str]] = [{}, {"HTTPS_PROXY": "http://nylorun:one@egress"}]
    backend = LocalBackend(baseline(SERVICE), folder, lambda: pairs[0])
    handle = await backend.open(spec())

    async def seen() -> dict[str, str]:
        lines = (await _shell(handle, "/usr/bin/env"))["stdout"].splitlines()
        found = dict(line.split("=", 1) for line in lines)
        return {name: value for name, value in found.items() if name not in {"PWD", "SHLVL", "_", "OLDPWD"}}

    own = {
        "PATH": "/opt/bin:/usr/bin:/bin", "LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "Europe/Berlin",
        "TERM": "dumb", "HOME": str(folder),
    }  # fmt: skip
    assert await seen() == own
    pairs.reverse()
    assert await seen() == {**own, "HTTPS_PROXY": "http://nylorun:one@egress"}
    assert (await _shell(handle, "echo [$NYLORUN_SANDBOX_JOIN_FILE]"))["stdout"] == "[]\n"
    await backend.close()


@pytest.mark.spec("pod-mode:10.16")
async def test_a_running_command_keeps_the_proxy_that_it_started_with(folder: Path) -> None:
    pairs = ["one"]
    backend = LocalBackend({}, folder, lambda: {"HTTPS_PROXY": pairs[0]})
    handle = await backend.open(spec())
    running = asyncio.create_task(
        handle.exec("touch began; until [ -e go ]; do sleep 0.05; done; echo $HTTPS_PROXY", SECOND, Signal())
    )
    await until((folder / "began").exists)
    pairs[0] = "two"
    assert (await _shell(handle, "echo $HTTPS_PROXY; touch go"))["stdout"] == "two\n"
    async with asyncio.timeout(BOUND):
        assert (await running).stdout == "one\n"
    await backend.close()


@pytest.mark.spec("sandbox-manager:19.18")
async def test_background_processes_hold_a_command_up_only_by_its_streams(pod: LocalHandle) -> None:
    waited = await _shell(pod, "(sleep 0.5; echo late) & echo hi", timeout=20)
    assert waited == {"exitCode": 0, "stdout": "hi\nlate\n", "stderr": ""}
    killed = await _shell(pod, "sleep 31.5151 & echo hi", timeout=0.5)
    assert (killed["exitCode"], killed["stdout"], killed["timedOut"]) == (124, "hi\n", True)
    await until(lambda: not _alive("31.5151"))


async def test_what_is_redirected_outlives_the_call(pod: LocalHandle, folder: Path) -> None:
    result = await _shell(pod, "(sleep 0.3; touch later) >/dev/null 2>&1 & echo hi", timeout=20)
    assert result["stdout"] == "hi\n"
    await until((folder / "later").exists)


async def test_a_process_that_left_the_group_holds_a_killed_command_for_a_second(pod: LocalHandle) -> None:
    async with asyncio.timeout(BOUND):
        result = await pod.exec("setsid sleep 31.5152 & echo hi; sleep 31.5153", 300, Signal())
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "hi\n")
    assert not _alive("31.5153")
    for pid in _alive("31.5152"):
        os.kill(pid, 9)


async def test_a_cancel_ends_the_group_and_keeps_what_was_written(pod: LocalHandle, folder: Path) -> None:
    signal = Signal()
    running = asyncio.create_task(
        pod.exec("echo early; sleep 31.5154 & touch began; sleep 31.5154", SECOND, signal)
    )
    await until((folder / "began").exists)
    signal.set("cancel")
    async with asyncio.timeout(BOUND):
        result = await running
    assert (result.exit_code, result.killed, result.timed_out, result.stdout) == (130, True, False, "early\n")
    await until(lambda: not _alive("31.5154"))


async def test_an_abort_before_throws_and_a_signal_of_others_is_128(pod: LocalHandle) -> None:
    signal = Signal()
    signal.set("shutdown")
    with pytest.raises(BackendError):
        await pod.exec("true", SECOND, signal)
    assert (await _shell(pod, "kill -TERM $$"))["exitCode"] == 128


async def test_a_cancelled_task_leaves_nothing_behind(pod: LocalHandle, folder: Path) -> None:
    running = asyncio.create_task(pod.exec("touch began; sleep 31.5155", SECOND, Signal()))
    await until((folder / "began").exists)
    before = len(os.listdir("/proc/self/fd"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _alive("31.5155")
    assert len(os.listdir("/proc/self/fd")) < before


async def test_a_workspace_that_is_gone_throws(pod: LocalHandle, folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(BackendError, match="No such file"):
        await pod.exec("true", SECOND, Signal())


async def test_streams_are_kept_to_4_mib(pod: LocalHandle) -> None:
    result = await pod.exec("head -c 5000000 /dev/zero", SECOND, Signal())
    assert result.stdout_dropped == 5_000_000 - 4 * 2**20


async def test_paths_under_workspace_are_those_of_the_pod(pod: LocalHandle, folder: Path) -> None:
    written = await output(pod, "write", path="/workspace/a/b", content="x")
    assert written == {"path": f"{folder}/a/b", "bytes": 1}
    assert await output(pod, "read", path="/workspace/a/b") == "1\tx"
    assert await output(pod, "glob", pattern="b", path="/workspace") == f"{folder}/a/b"
    outside = folder.parent / "outside"
    outside.write_text("y")
    assert await output(pod, "read", path=str(outside)) == "1\ty"
    assert await output(pod, "read", path="../outside") == "1\ty"


@pytest.mark.spec("sandbox-manager:19.20")
async def test_a_fifo_is_an_error_and_no_hang(pod: LocalHandle, folder: Path) -> None:
    os.mkfifo(folder / "p")
    for name, more in (("read", {}), ("write", {"content": "x"})):
        with pytest.raises(BackendError):
            await tool(pod, name, path="p", **more)
    listing = await pod.list_files(str(folder), 10)
    assert listing is not None
    assert listing.entries == []


async def test_listing_and_folders_work_without_a_boundary(pod: LocalHandle, folder: Path) -> None:
    await output(pod, "write", path="d/e/f", content="abc")
    (folder / "d" / "up").symlink_to("/usr")
    listing = await pod.list_files(str(folder), 10)
    assert listing is not None
    assert [(entry.path, entry.size) for entry in listing.entries] == [("d/e/f", 3)]
    assert await pod.list_files(str(folder / "d" / "up"), 10) is None
    assert await pod.list_files(str(folder / "none"), 10) is None


@pytest.mark.spec("pod-mode:10.23")
async def test_a_workspace_that_can_t_be_written_is_no_backend(tmp_path: Path) -> None:
    backend = LocalBackend({}, tmp_path / "none")
    probe = await backend.probe()
    assert (probe.available, probe.name) == (False, "local")
    records = await load_records(tmp_path / "records.json", Clock().text, lambda: "x")
    manager = Manager(TENANT, "auto", [backend], records)
    report = await manager.report()
    assert (report["backend"], report["preference"]) == (None, "auto")
    outcome = await manager.run(Call(SessionRef("s1", "team"), {}), "bash", {"command": "true"})
    assert outcome["code"] == "sandbox.unavailable"
    await backend.close()


async def test_every_key_is_the_one_workspace_and_nothing_is_removed(folder: Path, tmp_path: Path) -> None:
    backend = LocalBackend({}, folder)
    records = await load_records(tmp_path / "records.json", Clock().text, lambda: "x")
    manager = Manager(TENANT, "auto", [backend], records)
    for sandbox in ("one", "two"):
        outcome = await manager.run(
            Call(SessionRef("s1", sandbox), {"resources": {"cpus": 64}}),
            "bash",
            {"command": "echo x >> f; cat f"},
        )
        assert outcome["kind"] == "completed"
    assert (folder / "f").read_text() == "x\nx\n"
    report = await manager.report()
    assert (report["backend"], report["isolation"]) == ("local", "container")
    await manager.remove_all()
    assert (folder / "f").exists()
    assert manager.records() == []
    await manager.close()


def test_a_pod_has_this_driver_and_no_other() -> None:
    environ = {
        "NYLORUN_GRPC_TOKEN": "ab" * 32, "NYLORUN_SANDBOX_KIND": "pod", "WHIPPLETREE_SANDBOX_DRIVER": "bwrap",
        **SERVICE,
    }  # fmt: skip
    settings = read_settings(environ)
    assert settings.driver == "local"
    assert settings.baseline == {
        "PATH": "/opt/bin:/usr/bin:/bin", "LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "Europe/Berlin",
    }  # fmt: skip
    assert backend_of(settings).name == "local"
    assert read_settings({**environ, "NYLORUN_SANDBOX_KIND": "Pod"}).driver == "bwrap"
