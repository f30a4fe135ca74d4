"""The backend `local`: the pod is the boundary, and holds one sandbox (sandbox-manager 12)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, TypeVar

from services.sandbox_manager.contract import (
    BackendError,
    ExecResult,
    GrepQuery,
    LineRange,
    Listing,
    Output,
    Probe,
    Traits,
    output_of,
)
from services.sandbox_manager.disk.files import WorkspaceFiles
from services.sandbox_manager.disk.identity import file_pool
from services.sandbox_manager.disk.opening import Anywhere
from services.sandbox_manager.local.process import run
from services.sandbox_manager.paths import WORKSPACE
from services.sandbox_manager.search.program import FACTS, read_facts
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec

_T = TypeVar("_T")

PROBE_LIMIT_MS: Final = 10_000
_BASE: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
_BASELINE: Final = frozenset({"PATH", "LANG", "TZ"})
"""Taken over from the service, with the names that begin with LC_."""

ProxyVariables = Callable[[], Mapping[str, str]]
"""The proxy variables of a command that starts now (pod-mode 5)."""


def no_proxies() -> Mapping[str, str]:
    """Without a proxy."""
    return {}


def baseline(environ: Mapping[str, str]) -> dict[str, str]:
    """What commands take over from the service: nothing but places of programs, language and time zone."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _BASELINE or name.startswith("LC_")) and not name.upper().endswith("_PROXY")
    }


class LocalBackend:
    """One workspace for every key. `environ` is what commands take over (see `baseline`)."""

    name: Final = "local"
    isolation: Final[Literal["container"]] = "container"
    traits: Final = Traits(network_rules=False, list_remove=False, background="wait")

    def __init__(
        self,
        environ: Mapping[str, str],
        workspace: Path = Path(WORKSPACE),
        proxies: ProxyVariables = no_proxies,
    ) -> None:
        self._pool = file_pool(None)
        self._handle = LocalHandle(dict(environ), str(workspace), proxies, self._pool)

    async def probe(self) -> Probe:
        """Whether the workspace can be written. See Backend."""
        workspace = self._handle.workspace
        if not await asyncio.to_thread(_writable, workspace):
            return Probe(self.name, False, self.isolation, f"{workspace} can't be written")
        problem = None
        try:
            facts = await self._handle.exec(FACTS, PROBE_LIMIT_MS, Signal())
            self._handle.grep_program = read_facts(facts.stdout)
            problem = self._handle.grep_program.problem
        except BackendError as error:
            problem = str(error)
        return Probe(self.name, True, self.isolation, "; ".join(filter(None, ["plain children", problem])))

    def unmet(self, spec: BackendSpec) -> str | None:
        """See Backend: memory, CPUs and network are the pod's business."""
        del spec
        return None

    async def open(self, spec: BackendSpec) -> LocalHandle:
        """The one handle. See Backend."""
        del spec
        return self._handle

    async def remove(self, key: str) -> None:
        """See Backend: the volume is the controller's business."""

    async def list(self, prefix: str) -> Sequence[str]:
        """See Backend."""
        del prefix
        return []

    async def close(self) -> None:
        """See Backend."""
        self._pool.shutdown(wait=False)


class LocalHandle:
    """The pod's workspace."""

    created: Final = False

    def __init__(
        self, environ: Mapping[str, str], workspace: str, proxies: ProxyVariables, pool: ThreadPoolExecutor
    ) -> None:
        self.workspace: Final = workspace
        self.grep_program = read_facts("")
        self._environ = environ
        self._proxies = proxies
        self._pool = pool
        self._files = WorkspaceFiles(Anywhere())

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        """See Handle, but what left the command's group is not ended, and nothing is that ended by itself."""
        if "\0" in command:
            raise BackendError("The command holds a NUL byte.")
        environment = {**_BASE, **self._environ, "HOME": self.workspace, **self._proxies()}
        return await run(command, self.workspace, environment, timeout_ms, signal)

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        """See Handle: the image's own grep."""
        return await self.grep_program.search(query, self.exec, timeout_ms, signal)

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        """See Handle."""
        del root
        return output_of(await self.exec(command, timeout_ms, signal))

    async def read_lines(self, path: str, start: int, stop: int) -> LineRange | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_lines(path, start, stop))

    async def read_text(self, path: str) -> str | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_text(path))

    async def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_bytes(path, max_bytes))

    async def list_files(self, folder: str, max_entries: int) -> Listing | None:
        """See Handle."""
        return await self._work(lambda: self._files.list_files(folder, max_entries))

    async def make_folders(self, path: str, signal: Signal) -> str | None:
        """See Handle."""
        del signal
        return await self._work(lambda: self._files.make_folders(path))

    async def write(self, path: str, data: bytes) -> None:
        """See Handle."""
        await self._work(lambda: self._files.write(path, data))

    async def stop(self) -> None:
        """See Handle: there is nothing to end."""

    def release(self) -> None:
        """See Handle: it is used again for every key."""

    async def _work(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
