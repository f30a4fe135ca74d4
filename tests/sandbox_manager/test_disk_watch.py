"""Commands that fill the disk are ended; records and other workspaces stay writable."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.sandbox_manager.contract import Backend, Handle
from services.sandbox_manager.disk import usage, watch
from services.sandbox_manager.disk.usage import ENDLESS, disk_usage
from services.sandbox_manager.disk.watch import DiskLimits, DiskWatch, Room, size_text
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.operations import Call, SessionRef
from services.sandbox_manager.records import load_records
from services.sandbox_manager.root import Root, RootUnusable
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import (
    BOUND,
    CLOSED,
    DRIVERS,
    TENANT,
    Clock,
    make_driver,
    output,
    small_volume,
    spec,
    tool,
)

MIB = 2**20
FILL = "printf '%01000000d' 0 > big; while true; do cat big >> f; done"
"""A megabyte at a time, with nothing but what every driver's shell has."""


# Measuring


def _used(folder: Path) -> int | None:
    descriptor = os.open(folder, os.O_PATH)
    try:
        return disk_usage(descriptor, lambda: False)
    finally:
        os.close(descriptor)


def _blocks(*paths: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


def test_names_of_one_file_count_once_and_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "d" / "f", tmp_path / "g")
    (tmp_path / "up").symlink_to("/usr")
    (tmp_path / "holes").touch()
    os.truncate(tmp_path / "holes", 10**9)
    measured = _used(tmp_path)
    assert measured is not None
    assert measured == _blocks(tmp_path / "d", tmp_path / "d" / "f", tmp_path / "up", tmp_path / "holes")
    assert 100_000 <= measured < 10**6


def _deep(folder: Path, name: str, levels: int) -> None:
    """Makes folders inside each other, deeper than a path can name, and a file in the last one."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, b"x" * 200_000)
    os.close(file)
    os.close(here)


def test_folders_below_any_path_are_measured(tmp_path: Path) -> None:
    _deep(tmp_path, "n" * 100, 100)
    measured = _used(tmp_path)
    assert measured is not None
    assert 200_000 <= measured < MIB


def test_a_tree_that_is_too_deep_counts_as_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_BASES", 3)
    _deep(tmp_path, "n" * 100, 100)
    before = len(os.listdir("/proc/self/fd"))
    assert _used(tmp_path) == ENDLESS
    assert len(os.listdir("/proc/self/fd")) <= before


def test_measuring_can_be_stopped(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    assert disk_usage(descriptor, lambda: True) is None
    os.close(descriptor)


# What is too little


@pytest.mark.parametrize(
    ("free", "files", "short"),
    [(100, None, False), (99, None, True), (100, 1000, False), (100, 999, True), (0, 10**6, True)],
)
def test_a_volume_is_short_of_bytes_or_of_names(free: int, files: int | None, short: bool) -> None:
    assert Room(free, files, 100).short is short


def test_the_next_look_comes_before_a_disk_can_be_full() -> None:
    gib = 2**30
    assert Room(100 * gib, None, gib).look_again_s() == watch.LOOK_AGAIN_MOST_S
    assert Room(2 * gib, None, gib).look_again_s() == pytest.approx(0.125)
    assert Room(gib // 2, None, gib).look_again_s() == watch.LOOK_AGAIN_LEAST_S


def test_sizes_are_written_for_people() -> None:
    assert [size_text(size) for size in (2**30, 5 * 2**30, 32 * MIB, 2048, 3)] == [
        "1 GiB", "5 GiB", "32 MiB", "2 KiB", "3 bytes",
    ]  # fmt: skip


async def test_a_small_volume_keeps_a_tenth_free_where_nothing_is_set(tmp_path: Path) -> None:
    with small_volume(tmp_path / "v", 100) as root:
        watching = DiskWatch(root, DiskLimits(), None)
        assert await watching.has_room_for(MIB)
        assert await watching.has_room_for(99 * MIB)
        assert not await watching.has_room_for(100 * MIB)


# Commands


@contextlib.asynccontextmanager
async def _on(driver: Backend) -> AsyncIterator[Backend]:
    probe = await driver.probe()
    try:
        if not probe.available:
            pytest.skip(probe.reason or "")
        yield driver
    finally:
        await driver.close()


@pytest_asyncio.fixture(params=DRIVERS)
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Every driver on a volume of 44 MiB of which 32 must stay free."""
    with small_volume(tmp_path / "volume", 44) as root:
        async with _on(make_driver(request.param, root, limits=DiskLimits(32 * MIB))) as driver:
            yield driver


async def _open(driver: Backend) -> Handle:
    return await driver.open(spec(fresh_key(), network=CLOSED))


async def _shell(handle: Handle, command: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = await output(handle, "bash", command=command, **more)
    return result


async def test_a_command_that_fills_the_volume_is_killed_and_told_so(small: Backend, tmp_path: Path) -> None:
    handle, other = await _open(small), await _open(small)
    result = await _shell(handle, f"echo early; {FILL}", timeout=60)
    assert result == {
        "exitCode": 137,
        "stdout": "early\n",
        "stderr": "The disk has less than 32 MiB left: the command was killed.",
    }
    facts = os.statvfs(tmp_path / "volume")
    assert facts.f_bavail * facts.f_frsize > 8 * MIB
    # Others go on, and the one that did it can make room.
    assert (await _shell(other, "echo x > g; cat g"))["stdout"] == "x\n"
    assert await output(other, "write", path="h", content="y" * 1000)
    assert (await _shell(handle, "rm f; sleep 0.2; echo gone"))["stdout"] == "gone\n"
    assert (await _shell(handle, "echo z > f; cat f"))["stdout"] == "z\n"
    handle.release()
    other.release()


async def test_a_command_that_began_on_a_short_volume_is_killed_when_it_takes_more(small: Backend) -> None:
    handle = await _open(small)
    assert (await _shell(handle, FILL, timeout=60))["exitCode"] == 137
    again = await _shell(handle, FILL, timeout=60)
    assert again["exitCode"] == 137
    assert "the command was killed" in again["stderr"]
    handle.release()


async def test_file_tools_leave_what_records_need(small: Backend) -> None:
    handle = await _open(small)
    for number in range(4):
        await output(handle, "write", path=f"f{number}", content="x" * 10 * MIB)
    with pytest.raises(Exception, match="the disk is full"):
        await tool(handle, "write", path="last", content="x" * 10 * MIB)
    assert await output(handle, "write", path="small", content="x")
    handle.release()


@pytest.mark.parametrize("name", DRIVERS)
async def test_a_workspace_that_grew_too_much_is_stopped_until_it_shrinks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MEASURED_EVERY_S", 0.1)
    monkeypatch.setattr(watch, "LOOK_AGAIN_MOST_S", 0.05)
    tmp_path.chmod(0o755)
    async with _on(make_driver(name, tmp_path / "root", limits=DiskLimits(0, 8 * MIB))) as driver:
        handle = await _open(driver)
        grown = await _shell(handle, FILL, timeout=60)
        assert (grown["exitCode"], grown["stderr"]) == (
            137,
            "The workspace holds more than 8 MiB: the command was killed.",
        )
        assert (await _shell(handle, "sleep 0.5; echo alive"))["stdout"] == "alive\n"
        assert "more than 8 MiB" in (await _shell(handle, FILL, timeout=60))["stderr"]
        assert (await _shell(handle, "rm f; sleep 0.5; echo gone"))["stdout"] == "gone\n"
        assert (await _shell(handle, "printf %02000000d 0 > f; sleep 0.3; echo fine"))["stdout"] == "fine\n"
        handle.release()


# Records on a full volume


async def test_on_a_full_volume_records_are_whole_and_work_goes_on_afterwards(tmp_path: Path) -> None:
    clock = Clock()
    with small_volume(tmp_path / "volume", 32) as root:
        driver = make_driver("bwrap", root, limits=DiskLimits(0))
        async with _on(driver), asyncio.timeout(BOUND):
            records = await load_records(root / "records.json", clock.text, lambda: "stamp")
            manager = Manager(TENANT, "auto", [driver], records, clock.now_ms)

            def call(owner: str) -> Call:
                return Call(SessionRef(owner, None, "turn-1"), {"network": CLOSED})

            first = await manager.run(call("s1"), "bash", {"command": "echo x > f"})
            assert first["kind"] == "completed"
            stored = (root / "records.json").read_bytes()
            filled = await manager.run(
                call("s1"), "bash", {"command": "head -c 99999999 /dev/zero > big; echo end"}
            )
            assert filled["output"]["stdout"] == "end\n"  # type: ignore[index, call-overload]
            with pytest.raises(Exception, match="No space left"):
                await manager.run(call("s2"), "bash", {"command": "true"})
            with pytest.raises(Exception, match="No space left"):
                await manager.stop_idle(clock.ms + 10**9)
            assert (root / "records.json").read_bytes() == stored
            assert [path.name for path in root.glob("*.tmp")] == []
            assert (await load_records(root / "records.json", clock.text, lambda: "x")).get(
                next(iter(records.all())).key
            )
            for _ in range(2):
                held = Root(root)
                held.take()
                with pytest.raises(RootUnusable, match="is in use by"):
                    Root(root).take()
                held.release()
            (driver_file,) = root.glob("nylorun-*/workspace/big")
            driver_file.unlink()
            for owner in ("s1", "s2"):
                outcome = await manager.run(call(owner), "bash", {"command": "cat f"})
                assert outcome["kind"] == "completed"
            states = [record.state for record in manager.records()]
            assert states == ["running", "running"]
            again = await load_records(root / "records.json", clock.text, lambda: "stamp")
            assert again.all() == manager.records()
            await manager.stop_idle(clock.ms + 10**9)
