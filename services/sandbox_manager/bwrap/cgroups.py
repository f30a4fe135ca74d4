"""Control groups of sandboxes: memory, processes and CPU of a whole command, where the manager may make them.

Both versions are used as the system has them (sandbox-manager 16.3.5). A workspace's group is made when it is
opened and lives as long as its handle; a command's processes are put into it before the command begins.
All of it is blocking and takes microseconds to milliseconds: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from services.sandbox_manager.contract import BackendError

PERIOD_US: Final = 100_000
MOUNTS: Final = Path("/proc/self/mountinfo")
OWN: Final = Path("/proc/self/cgroup")
_WANTED: Final = ("memory", "pids", "cpu")
_MANAGER: Final = "whippletree-manager"
_PREFIX: Final = "whippletree-"
_WITH_SWAP: Final = "memory.memsw.limit_in_bytes"
_SWAP_FILES: Final = frozenset({_WITH_SWAP, "memory.swap.max"})
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a whole command may use."""

    memory_bytes: int
    processes: int
    cpus: int


class Group:
    """The group of one workspace, in each hierarchy that has a part of its limits."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)

    def join(self, processes: Sequence[int]) -> None:
        """Puts processes into it. Raises BackendError; one that has ended is passed over."""
        for folder in self._folders:
            for process in processes:
                try:
                    _write(folder / "cgroup.procs", str(process))
                except OSError as error:
                    if error.errno != errno.ESRCH:
                        raise BackendError(f"The sandbox's limits can't be set: {error.strerror}.") from error

    def remove(self) -> None:
        """Removes it; one that still has a process is left for the next start."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                _write(folder / "cgroup.kill", "1")
            with contextlib.suppress(OSError):
                folder.rmdir()


class Groups(Protocol):
    """Where groups are made."""

    @property
    def controllers(self) -> tuple[str, ...]:
        """What they limit: of `memory`, `pids` and `cpu`."""
        ...

    def make(self, name: str, limits: GroupLimits) -> Group:
        """Makes a group under a name that none has. Raises BackendError."""
        ...

    def close(self) -> None:
        """Removes what is left."""
        ...


def find_groups(root: Path, mounts: Path = MOUNTS, own: Path = OWN) -> Groups | str:
    """The groups that this process may make for the workspaces of a root, or why there are none.

    Groups that an earlier process left are removed.
    """
    name = _PREFIX + hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    try:
        hierarchies = _hierarchies(mounts.read_text("utf-8", "replace"), own.read_text("utf-8", "replace"))
    except OSError as error:
        return f"the system does not show them ({error.strerror})"
    if not hierarchies:
        return "the system has none mounted"
    old = {key: folder for key, folder in hierarchies.items() if key in _WANTED}
    try:
        if "memory" in old and "pids" in old:
            return _Version1({key: _base(folder, name) for key, folder in old.items()})
        unified = hierarchies.get("")
        if unified is None or not {"memory", "pids"} <= set(_controllers(unified)):
            return "memory and pids are not among the controllers of this process's group"
        return _Version2(_unified_base(unified, name))
    except OSError as error:
        return f"they can't be made ({error.strerror})"


class _Version1:
    def __init__(self, bases: Mapping[str, Path]) -> None:
        self._bases = bases
        self.controllers = tuple(key for key in _WANTED if key in bases)

    def make(self, name: str, limits: GroupLimits) -> Group:
        """See Groups."""
        settings: dict[str, list[tuple[str, str]]] = {
            "memory": [
                ("memory.limit_in_bytes", str(limits.memory_bytes)),
                (_WITH_SWAP, str(limits.memory_bytes)),
            ],
            "pids": [("pids.max", str(limits.processes))],
            "cpu": [
                ("cpu.cfs_period_us", str(PERIOD_US)),
                ("cpu.cfs_quota_us", str(limits.cpus * PERIOD_US)),
            ],
        }
        return _make({self._bases[key] / name: settings[key] for key in self.controllers})

    def close(self) -> None:
        """See Groups."""
        for base in self._bases.values():
            _remove(base)


class _Version2:
    def __init__(self, base: Path) -> None:
        self._base = base
        self.controllers = tuple(key for key in _WANTED if key in _controllers(base))

    def make(self, name: str, limits: GroupLimits) -> Group:
        """See Groups."""
        settings = [
            ("memory.max", str(limits.memory_bytes)),
            ("memory.swap.max", "0"),
            ("pids.max", str(limits.processes)),
        ]
        if "cpu" in self.controllers:
            settings.append(("cpu.max", f"{limits.cpus * PERIOD_US} {PERIOD_US}"))
        return _make({self._base / name: settings})

    def close(self) -> None:
        """See Groups."""
        _remove(self._base)


def _make(folders: Mapping[Path, Sequence[tuple[str, str]]]) -> Group:
    group = Group(tuple(folders))
    try:
        for folder, settings in folders.items():
            folder.mkdir()
            for name, value in settings:
                # Not every kernel counts swap.
                with contextlib.suppress(*([FileNotFoundError] if name in _SWAP_FILES else [])):
                    _write(folder / name, value)
    except OSError as error:
        group.remove()
        raise BackendError(f"The sandbox's limits can't be set: {error.strerror}.") from error
    return group


def _base(folder: Path, name: str) -> Path:
    base = folder / name
    _remove(base)
    base.mkdir(exist_ok=True)
    return base


def _remove(base: Path) -> None:
    """Removes a group and those in it; what still has a process stays."""
    with contextlib.suppress(OSError):
        for left in base.iterdir():
            if left.is_dir():
                Group([left]).remove()
        base.rmdir()


def _unified_base(own: Path, name: str) -> Path:
    """Groups with limits may not stand below one that has processes: this process moves aside."""
    wanted = [key for key in _WANTED if key in _controllers(own)]
    try:
        _enable(own, wanted)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        aside = own / _MANAGER
        aside.mkdir(exist_ok=True)
        _write(aside / "cgroup.procs", str(os.getpid()))
        _enable(own, wanted)
    base = _base(own, name)
    _enable(base, wanted)
    return base


def _enable(folder: Path, controllers: Sequence[str]) -> None:
    _write(folder / "cgroup.subtree_control", " ".join(f"+{key}" for key in controllers))


def _controllers(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.controllers").read_text("ascii").split()
    except OSError:
        return []


def _hierarchies(mounts: str, own: str) -> dict[str, Path]:
    """This process's own folder in each hierarchy, by controller; that of version 2 by the empty name."""
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    found: dict[str, Path] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in {"cgroup", "cgroup2"}:
            continue
        root, mounted = (_unescape(field) for field in fields[3:5])
        for name in [""] if kinds[0] == "cgroup2" else kinds[2].split(","):
            if name in paths and name not in found:
                found[name] = Path(mounted) / _below(paths[name], root)
    return found


def _below(path: str, root: str) -> str:
    """A group's path as a mount of `root` shows it."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.lstrip("/")


def _unescape(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def _write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
