"""Kills a manager before every single step that it does on the disk, and looks at what is left.

Run as `python -m tests.sandbox_manager.kill_steps ROOT`: a life of three workspaces is lived again and again in
a fork of its own, which ends itself before its first step, before its second, and so on until it lives to the
end. After each death everything that was told to be done must be there, nothing may be half, and a new manager
must be able to go on. Prints the number of deaths.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from services.sandbox_manager.contract import (
    BackendError,
    ExecResult,
    GrepQuery,
    Output,
    Probe,
    Traits,
)
from services.sandbox_manager.disk import opening
from services.sandbox_manager.disk.handle import DiskHandle
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.keys import session_key
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.operations import Call, SessionRef
from services.sandbox_manager.records import FILE_NAME, load_records
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec

TENANT = "tn_a"
KEPT, NEW, GONE = (session_key(TENANT, owner) for owner in ("kept", "new", "gone"))
FILES = {"a/b/c": "deep", "d": "flat", "e/f": "other"}
CONTENT = "x" * 2000
STEPS = (
    "mkdir", "rename", "link", "fsync", "unlink", "rmdir", "chmod", "fchmod", "chown", "fchown", "ftruncate",
    "write", "pwrite",
)  # fmt: skip


class _Handle(DiskHandle):
    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        return ExecResult(0, "", "")

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        raise BackendError("no grep")

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        raise BackendError("no find")


class _Backend:
    """Workspaces on the disk without any command."""

    name = "virtual"
    isolation: Literal["process"] = "process"
    traits = Traits()

    def __init__(self, root: Path) -> None:
        identity = Identity(65_431, 65_431) if os.geteuid() == 0 else None
        self.disk = WorkspaceDisk(root, identity)

    async def probe(self) -> Probe:
        await self.disk.prepare()
        return Probe(self.name, True, self.isolation, "a test")

    def unmet(self, spec: BackendSpec) -> str | None:
        return None

    async def open(self, spec: BackendSpec) -> _Handle:
        return _Handle(await self.disk.open(spec.key), self.disk)

    async def remove(self, key: str) -> None:
        await self.disk.remove(key)

    async def list(self, prefix: str) -> Any:
        return await self.disk.keys(prefix)

    async def close(self) -> None:
        self.disk.close()


async def _manager(root: Path) -> tuple[Manager, Callable[[str], Call]]:
    stamps = itertools.count()
    records = await load_records(
        root / FILE_NAME, lambda: "2026-01-02T03:04:05.678Z", lambda: str(next(stamps))
    )
    manager = Manager(TENANT, "auto", [_Backend(root)], records)

    def call(owner: str) -> Call:
        return Call(SessionRef(owner), {"network": {"preset": "none"}})

    return manager, call


async def _write(manager: Manager, call: Call, path: str, content: str) -> None:
    outcome = await manager.run(call, "write", {"path": path, "content": content})
    assert outcome["kind"] == "completed", outcome


async def _before(root: Path) -> None:
    """Two workspaces with files, stopped."""
    manager, call = await _manager(root)
    for owner in ("kept", "gone"):
        for path, content in FILES.items():
            await _write(manager, call(owner), path, content)
    await manager.close()


async def _live(root: Path, done: Callable[[str], None]) -> None:
    """Makes one, stops it, opens it again, removes another; says what is done."""
    manager, call = await _manager(root)
    await _write(manager, call("new"), "sub/f", CONTENT)
    done("made")
    await manager.stop_idle(10.0**15)
    done("stopped")
    await _write(manager, call("new"), "g", CONTENT)
    done("again")
    await manager.remove(GONE)
    done("removed")
    await manager.close()
    done("closed")


# Deaths


def _fatal(step: int) -> None:
    """Ends this process before its step of that number."""
    counted = itertools.count()

    def fatal(real: Any) -> Any:
        def before(*args: Any, **more: Any) -> Any:
            if next(counted) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return before

    for name in STEPS:
        setattr(os, name, fatal(getattr(os, name)))
    vars(opening)["openat2"] = fatal(opening.openat2)


def _die_at(root: Path, step: int) -> tuple[bool, list[str]]:
    """Lives in a fork; whether it lived to the end, and what it said to be done."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write = os.write
        try:
            _fatal(step)
            asyncio.run(_live(root, lambda what: (write(writer, f"{what}\n".encode()), None)[1]))
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  (the edge of the fork: the parent reads it)
            write(2, f"step {step}: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(writer)
    with open(reader, encoding="ascii") as said:
        done = said.read().split()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False, done
    assert os.WEXITSTATUS(status) == 0, "the life ended with an error"
    return True, done


# Afterwards


def _check(root: Path, done: list[str]) -> None:
    records = root / FILE_NAME
    stored = {one["key"]: one["state"] for one in json.loads(records.read_text())["records"]}
    assert KEPT in stored, "a record is lost"
    _whole(root, KEPT)
    if (root / GONE).exists():
        assert "removed" not in done
        assert GONE in stored, "a workspace is there without its record"
        _whole(root, GONE)
    if "removed" in done:
        assert GONE not in stored
    if "made" in done:
        assert (root / NEW / "workspace" / "sub" / "f").read_text() == CONTENT
        assert NEW in stored
    if "again" in done:
        assert (root / NEW / "workspace" / "g").read_text() == CONTENT
    if "closed" in done:
        assert set(stored.values()) == {"stopped"}


def _whole(root: Path, key: str) -> None:
    for path, content in FILES.items():
        assert (root / key / "workspace" / path).read_text() == content, f"{path} of {key} is half"


async def _go_on(root: Path, done: list[str]) -> None:
    """A new manager on what is left: it sweeps, works, removes, and leaves nothing."""
    manager, call = await _manager(root)
    await manager.stop_idle()
    assert all(record.state == "stopped" for record in manager.records())
    outcome = await manager.run(call("kept"), "read", {"path": "a/b/c"})
    assert outcome == {"kind": "completed", "output": "1\tdeep"}
    await _write(manager, call("new"), "after", "x")
    if "made" in done:
        outcome = await manager.run(call("new"), "read", {"path": "sub/f"})
        assert outcome["kind"] == "completed"
    await manager.remove_all()
    assert manager.records() == []
    await manager.close()
    trash = root / ".removed"
    left = [*root.glob("nylorun-*"), *root.glob("*.tmp"), *(trash.iterdir() if trash.exists() else [])]
    assert not left, f"left: {left}"


def main(folder: Path) -> None:
    """Dies before each step in turn."""
    template = folder / "template"
    template.mkdir()
    asyncio.run(_before(template))
    for step in itertools.count():
        root = folder / f"root-{step}"
        shutil.copytree(template, root, symlinks=True)
        for path in [root, *root.rglob("*")]:
            twin = template / path.relative_to(root)
            os.chown(path, twin.stat().st_uid, twin.stat().st_gid)
        lived, done = _die_at(root, step)
        try:
            _check(root, done)
            asyncio.run(_go_on(root, done))
        except AssertionError as error:
            raise SystemExit(f"after a death before step {step} (done: {done}): {error}") from error
        shutil.rmtree(root)
        if lived:
            print(step)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
