"""Control groups: which are found, what is written into them, and that they hold."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.sandbox_manager.bwrap.cgroups import Group, GroupLimits, find_groups
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.contract import Backend, BackendError
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import BOUND, CLOSED, SECOND, spec, until

LIMITS = GroupLimits(256 * 2**20, 100, 3)


def _mount(folder: Path, kind: str, options: str, root: str = "/") -> str:
    return f"31 23 0:28 {root} {folder} rw,relatime shared:1 - {kind} {kind} rw,{options}\n"


def _fake(tmp_path: Path, mounts: str, own: str) -> dict[str, Any]:
    (tmp_path / "mounts").write_text(mounts)
    (tmp_path / "own").write_text(own)
    return {"mounts": tmp_path / "mounts", "own": tmp_path / "own"}


def _content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


class _Files:
    """Makes the files that a kernel has in a new group when the folder appears: here, before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        real = Path.mkdir

        def mkdir(path: Path, *args: Any, **more: Any) -> None:
            real(path, *args, **more)
            for name in names:
                (path / name).touch()

        monkeypatch.setattr(Path, "mkdir", mkdir)


def test_version_1_is_used_with_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mem", "pids", "cpu"):
        (tmp_path / name / "mine").mkdir(parents=True)
    _Files(
        monkeypatch, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max", "cgroup.procs",
        "cpu.cfs_period_us", "cpu.cfs_quota_us",
    )  # fmt: skip
    mounts = (
        _mount(tmp_path / "mem", "cgroup", "memory")
        + _mount(tmp_path / "pids", "cgroup", "pids")
        + _mount(tmp_path / "cpu", "cgroup", "cpu,cpuacct")
    )
    found = find_groups(
        tmp_path, **_fake(tmp_path, mounts, "3:memory:/mine\n2:pids:/mine\n1:cpu,cpuacct:/mine\n0::/\n")
    )
    assert not isinstance(found, str)
    assert found.controllers == ("memory", "pids", "cpu")
    group = found.make("k", LIMITS)
    (memory,) = (tmp_path / "mem" / "mine").glob("whippletree-*/k")
    (pids,) = (tmp_path / "pids" / "mine").glob("whippletree-*/k")
    (cpu,) = (tmp_path / "cpu" / "mine").glob("whippletree-*/k")
    assert _content(memory)["memory.limit_in_bytes"] == str(256 * 2**20)
    assert _content(memory)["memory.memsw.limit_in_bytes"] == str(256 * 2**20)
    assert _content(pids)["pids.max"] == "100"
    assert (_content(cpu)["cpu.cfs_period_us"], _content(cpu)["cpu.cfs_quota_us"]) == ("100000", "300000")
    group.join([4711])
    assert _content(pids)["cgroup.procs"] == "4711"


def test_version_2_is_used_with_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "v2" / "service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.subtree_control").touch()
    _Files(
        monkeypatch, "memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.procs",
        "cgroup.controllers", "cgroup.subtree_control", "cgroup.kill",
    )  # fmt: skip
    mounts = _mount(tmp_path / "v2", "cgroup2", "nsdelegate", root="/outer")
    found = find_groups(tmp_path, **_fake(tmp_path, mounts, "0::/outer/service\n"))
    assert not isinstance(found, str)
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    (base,) = own.glob("whippletree-*")
    (base / "cgroup.controllers").write_text("cpu memory pids\n")
    again = find_groups(tmp_path, **_fake(tmp_path, mounts, "0::/outer/service\n"))
    assert not isinstance(again, str)
    again.make("k", LIMITS)
    made = _content(base / "k")
    assert (made["memory.max"], made["memory.swap.max"], made["pids.max"]) == (str(256 * 2**20), "0", "100")


@pytest.mark.parametrize(
    ("mounts", "own", "why"),
    [
        ("", "0::/\n", "none mounted"),
        ("31 23 0:28 / {folder} rw - cgroup2 cgroup2 rw\n", "0::/\n", "not among the controllers"),
        (
            "31 23 0:28 / {folder}/none rw - cgroup cgroup rw,memory,pids\n",
            "1:memory,pids:/\n",
            "can't be made",
        ),
    ],
)
def test_without_groups_the_reason_is_told(tmp_path: Path, mounts: str, own: str, why: str) -> None:
    found = find_groups(tmp_path, **_fake(tmp_path, mounts.format(folder=tmp_path), own))
    assert isinstance(found, str)
    assert why in found


def test_a_system_that_shows_none_is_told(tmp_path: Path) -> None:
    found = find_groups(tmp_path, tmp_path / "none", tmp_path / "none")
    assert "does not show" in str(found)


def test_a_group_that_is_gone_is_an_error_and_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="limits can't be set"):
        Group([tmp_path / "none"]).join([1])


# On this system, where it has them


@pytest.fixture
def _grouped(bwrap: Backend) -> None:
    assert isinstance(bwrap, BwrapBackend)
    if isinstance(bwrap._groups, str):
        pytest.skip(f"no control groups here: {bwrap._groups}")


async def _run(bwrap: Backend, command: str, **resources: Any) -> Any:
    handle = await bwrap.open(spec(fresh_key(), network=CLOSED, resources=resources))
    try:
        async with asyncio.timeout(BOUND):
            return await handle.exec(command, SECOND, Signal())
    finally:
        handle.release()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("_grouped")
async def test_processes_together_can_t_take_more_than_the_memory(bwrap: Backend) -> None:
    hog = "(x=$(head -c 90000000 /dev/zero | tr '\\0' x); sleep 0.5; echo survived) &"
    result = await _run(bwrap, f"{hog * 8} wait", memory="256MiB")
    assert 0 < result.stdout.count("survived") < 8
    assert (await _run(bwrap, "echo next", memory="256MiB")).stdout == "next\n"


@pytest.mark.asyncio(loop_scope="module")
async def test_without_groups_memory_is_watched(bwrap: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "_groups", "none in this test")
    hog = "(x=$(head -c 90000000 /dev/zero | tr '\\0' x); sleep 20; echo survived) &"
    result = await _run(bwrap, f"{hog * 8} wait", memory="256MiB")
    assert (result.exit_code, result.stdout) == (137, "")
    assert result.note == "The command took more than 320 MiB of memory and was killed."
    shared = (
        "x=$(head -c 90000000 /dev/zero | tr '\\0' x); for i in 1 2 3 4 5; do (sleep 1; echo $i) & done; wait"
    )
    assert len((await _run(bwrap, shared, memory="256MiB")).stdout.split()) == 5


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("_grouped")
async def test_a_command_can_t_take_more_cpus_than_its_spec(bwrap: Backend) -> None:
    burn = "for i in 1 2 3 4; do (timeout 1 bash -c 'while :; do :; done') & done; wait; cat /proc/self/stat"
    result = await _run(bwrap, f"{burn} >/dev/null; times | tail -1", cpus=1)
    minutes, seconds = result.stdout.split()[0].removesuffix("s").split("m")
    assert int(minutes) * 60 + float(seconds) < 1.6


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("_grouped")
async def test_groups_are_removed_with_their_handles(bwrap: Backend) -> None:
    handle = await bwrap.open(spec(fresh_key(), network=CLOSED))
    group = handle._confines.group  # type: ignore[attr-defined]
    folders = group._folders
    assert all(folder.is_dir() for folder in folders)
    handle.release()
    await until(lambda: not any(folder.exists() for folder in folders))
