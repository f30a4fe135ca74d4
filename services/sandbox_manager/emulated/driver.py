"""The emulated driver: backend `virtual`, isolation `process` (sandbox-manager 13 and 16.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Literal

from services.sandbox_manager.contract import (
    BackendError,
    ExecResult,
    GrepQuery,
    Output,
    Probe,
    Traits,
    output_of,
)
from services.sandbox_manager.disk.handle import DiskHandle
from services.sandbox_manager.disk.layout import Place
from services.sandbox_manager.disk.openat2 import openat2_problem
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.emulated.pool import ChildPool
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec
from services.sandbox_manager.text import encode
from services.sandbox_manager.tools.glob import FILES_SEARCHED

NOTE: Final = (
    "emulated shell: commands are re-implemented in Python, no program of a system runs, "
    "no network, also where a spec allows hosts"
)
SUFFIXES_UNMET: Final = "the emulated shell can't allow hosts by suffix (*.example.com)."


class EmulatedBackend:
    """Workspaces whose commands run in a shell written in Python."""

    name: Final = "virtual"
    isolation: Final[Literal["process"]] = "process"
    traits: Final = Traits(processes=False, real_commands=False)

    def __init__(self, disk: WorkspaceDisk) -> None:
        self._disk = disk
        self.children = ChildPool(disk.root, disk.identity)

    async def probe(self) -> Probe:
        """Starts a child and runs a trivial command. See Backend."""
        problem = openat2_problem()
        try:
            if problem is not None:
                raise BackendError(problem)
            await self._disk.prepare()
            await self.children.warm()
        except BackendError as error:
            return Probe(self.name, False, self.isolation, f"the emulated shell can't be used: {error}")
        return Probe(self.name, True, self.isolation, NOTE, f"just-bash {metadata.version('just-bash')}")

    def unmet(self, spec: BackendSpec) -> str | None:
        """See Backend."""
        return SUFFIXES_UNMET if spec.network.suffixes else None

    async def open(self, spec: BackendSpec) -> EmulatedHandle:
        """Makes the folders. See Backend."""
        return EmulatedHandle(self.children, await self._disk.open(spec.key), self._disk)

    async def remove(self, key: str) -> None:
        """See Backend."""
        await self._disk.remove(key)

    async def list(self, prefix: str) -> Sequence[str]:
        """See Backend."""
        return await self._disk.keys(prefix)

    async def close(self) -> None:
        """See Backend."""
        self._disk.close()
        await self.children.close()


class EmulatedHandle(DiskHandle):
    """An open workspace; each command has a fresh interpreter."""

    def __init__(self, children: ChildPool, place: Place, disk: WorkspaceDisk) -> None:
        super().__init__(place, disk)
        self._children = children

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        """See Handle."""
        if "\0" in command:
            raise BackendError("The command holds a NUL byte.")
        return await self._do({"do": "shell", "command": command}, timeout_ms, signal)

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        """See Handle: a matcher of ours that prints what GNU grep 3.8 prints, files in byte order."""
        request = {
            "do": "grep",
            "pattern": query.pattern,
            "path": query.path,
            "include": query.include,
            "ignoreCase": query.ignore_case,
            "lines": query.lines,
        }
        return output_of(await self._do(request, timeout_ms, signal))

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        """See Handle: files in byte order."""
        del command
        request = {"do": "find", "root": root, "most": FILES_SEARCHED}
        return output_of(await self._do(request, timeout_ms, signal))

    async def _do(self, request: Mapping[str, Any], timeout_ms: float, signal: Signal) -> ExecResult:
        clean = {
            name: encode(value).decode() if isinstance(value, str) else value
            for name, value in request.items()
        }
        async with self.watched() as overdrawn:
            return await self._children.run({**clean, "key": self.place.key}, timeout_ms, signal, overdrawn)
