"""The container driver: backend `virtual`, isolation `container` (sandbox-manager 16.2).

One container a workspace. What a command leaves running when it ends, or when it is killed, dies with the
container; the next command starts it again. Files are worked on in the host's folder, like with bubblewrap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from services.common.latch import Latch
from services.common.logs import get_logger
from services.sandbox_manager.bwrap.flags import LONGEST_ARGUMENT_BYTES
from services.sandbox_manager.captured import NEVER_BEGAN, Captured, exec_result
from services.sandbox_manager.container import forwarder
from services.sandbox_manager.container.engine import Engine, Found
from services.sandbox_manager.container.plan import (
    PLAN_LABEL,
    RESTING_PROCESSES,
    HostFolders,
    container_name,
    create_document,
    forwarder_document,
    starter_words,
)
from services.sandbox_manager.container.way_out import WayOut, egress_folder, open_way_out
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
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.layout import Place
from services.sandbox_manager.disk.openat2 import openat2_problem
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.hosts import HostRules
from services.sandbox_manager.egress.proxy import Slots
from services.sandbox_manager.kills import Kill, killing
from services.sandbox_manager.search.program import FACTS, read_facts
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec
from services.sandbox_manager.text import encode

ROOT_ID_NAME: Final = "container-root"
OPEN_CHECK_LIMIT_MS: Final = 20_000
AFTER_KILL_S: Final = 5.0
"""How long the streams of a killed container may stay open."""
NETWORK_NOTE: Final = (
    "commands have no network, also where a spec allows hosts: WHIPPLETREE_SANDBOX_EGRESS_IMAGE is not set"
)
_FORWARDER: Final = Path(forwarder.__file__).read_text("utf-8")
_CHECK_FILE: Final = "/tmp/.check"
_CHECK: Final = f"cat {_CHECK_FILE}; rm -f {_CHECK_FILE}; echo; command -v bash || echo; {FACTS}"


class ContainerBackend:
    """Workspaces whose commands run in containers.

    `host_root` is what the engine's host calls the root.
    """

    name: Final = "virtual"
    isolation: Final[Literal["container"]] = "container"

    def __init__(
        self,
        disk: WorkspaceDisk,
        *,
        engine: Engine,
        host_root: Path | None = None,
        pull: bool = False,
        egress_image: str | None = None,
        dialer: Dialer | None = None,
    ) -> None:
        self._disk = disk
        self._host_root = host_root or disk.root
        self._pull = pull
        self._egress_image = egress_image
        self._dialer = dialer or Dialer()
        self._slots: Slots | None = None
        self._root_id = ""
        self.engine: Final = engine

    @property
    def traits(self) -> Traits:
        """See Backend."""
        return Traits(network_rules=self._egress_image is not None)

    async def probe(self) -> Probe:
        """Asks the engine, and ends what a process before this one left running. See Backend."""
        try:
            problem = openat2_problem()
            if problem is not None:
                raise BackendError(problem)
            version = await self.engine.version()
            await self._disk.prepare()
            self._root_id = await asyncio.to_thread(_root_id, self._disk.root)
            for left in await self.engine.ours(self._root_id):
                if left.running:
                    await self.engine.kill(left.id)
        except BackendError as error:
            return Probe(self.name, False, self.isolation, f"containers can't be used: {error}")
        reason = "containers" if self._egress_image else f"containers; {NETWORK_NOTE}"
        return Probe(self.name, True, self.isolation, reason, version)

    def unmet(self, spec: BackendSpec) -> str | None:
        """See Backend: nothing is refused. Without an image for the forwarder no host is reachable."""
        del spec
        return None

    async def open(self, spec: BackendSpec) -> ContainerHandle:
        """Makes the folders, adopts or makes the container, tries a command. See Backend."""
        place = await self._disk.open(spec.key)
        way_out: WayOut | None = None
        try:
            left = await self.engine.ours(self._known_root(), spec.key)
            forwarder_id = None
            if self._egress_image is not None and not (rules := HostRules(spec.network)).closed:
                way_out = await self._open_way_out(spec.key, rules)
                forwarder_id = await self._forwarder(spec.key, self._egress_image, left)
            container_id = await self._container(spec, forwarder_id, left)
            handle = ContainerHandle(self, place, self._disk, Containers(container_id, forwarder_id), way_out)
        except BaseException:
            if way_out is not None:
                way_out.close()
            place.close()
            raise
        try:
            await handle.check()
        except BaseException:
            handle.release()
            raise
        return handle

    async def remove(self, key: str) -> None:
        """See Backend."""
        await self.remove_containers(key)
        await self._disk.remove(key)

    async def list(self, prefix: str) -> Sequence[str]:
        """See Backend."""
        return await self._disk.keys(prefix)

    async def close(self) -> None:
        """See Backend."""
        self._disk.close()
        await self.engine.close()

    async def remove_containers(self, key: str) -> None:
        """Removes a workspace's container. Raises BackendError."""
        for found in await self.engine.ours(self._known_root(), key):
            await self.engine.remove(found.id)

    async def _open_way_out(self, key: str, rules: HostRules) -> WayOut:
        if self._slots is None:
            self._slots = Slots()
        return await open_way_out(self._disk.root, key, rules, self._dialer, self._slots, self._user())

    async def _forwarder(self, key: str, image: str, left: Sequence[Found]) -> str:
        document = forwarder_document(
            key,
            image,
            str(egress_folder(self._host_root, key)),
            _FORWARDER,
            root_id=self._known_root(),
            identity=self._user(),
        )
        return await self._adopt(f"{container_name(self._known_root(), key)}-egress", document, left)

    async def _container(self, spec: BackendSpec, forwarder_id: str | None, left: Sequence[Found]) -> str:
        """A stopped container as the spec wants it; others of the workspace are removed."""
        folder = self._host_root / spec.key
        document = create_document(
            spec,
            HostFolders(str(folder / "workspace"), str(folder / "tmp")),
            root_id=self._known_root(),
            identity=self._user(),
            forwarder_id=forwarder_id,
        )
        wanted = document["Labels"][PLAN_LABEL]
        for found in left:
            if found.plan != wanted and found.id != forwarder_id:
                await self.engine.remove(found.id)
        return await self._adopt(container_name(self._known_root(), spec.key), document, left)

    async def _adopt(self, name: str, document: dict[str, Any], left: Sequence[Found]) -> str:
        """The container of that plan, with nothing running in it: the one that is there, or a new one."""
        for found in left:
            if found.plan == document["Labels"][PLAN_LABEL]:
                if found.running:
                    await self.engine.kill(found.id)
                return found.id
        for found in left:
            if found.name == name:
                await self.engine.remove(found.id)
        return await self.engine.create(name, document, pull=self._pull)

    def _user(self) -> Identity:
        return self._disk.identity or Identity(os.getuid(), os.getgid())

    def _known_root(self) -> str:
        if not self._root_id:
            raise BackendError("The driver has not been probed.")
        return self._root_id


def _root_id(root: Path) -> str:
    """What tells this root's containers from those of others; made once, kept beside the workspaces."""
    path = root / ROOT_ID_NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            kept = path.read_text("ascii").strip()
            if kept:
                return kept
        made = secrets.token_hex(16)
        part = path.with_suffix(".part")
        part.write_text(made + "\n", "ascii")
        part.rename(path)
    except OSError as error:
        raise BackendError(f"{ROOT_ID_NAME} can't be kept in the root: {error.strerror}") from error
    return made


@dataclass(frozen=True, slots=True)
class Containers:
    """Of one workspace: its own, and the one that forwards to the proxy where it has a way out."""

    workspace: str
    forwarder: str | None


class ContainerHandle(DiskHandle):
    """An open workspace with its container, which runs from the first command on."""

    def __init__(
        self,
        backend: ContainerBackend,
        place: Place,
        disk: WorkspaceDisk,
        containers: Containers,
        way_out: WayOut | None,
    ) -> None:
        super().__init__(place, disk)
        self._backend = backend
        self._engine = backend.engine
        self._id = containers.workspace
        self._forwarder = containers.forwarder
        self._way_out = way_out
        self._running = False
        self._commands = 0
        """That run now. The manager sends one after the other."""
        self._shell = "/bin/sh"
        self._grep = read_facts("")

    async def check(self) -> None:
        """Tries a command, and whether it sees the folder that the manager writes to. Raises BackendError."""
        mark = secrets.token_hex(8)
        await self.write(_CHECK_FILE, mark.encode())
        result = await self.exec(_CHECK, OPEN_CHECK_LIMIT_MS, Signal())
        lines = result.stdout.split("\n")
        if lines[0] != mark:
            said = result.stderr.strip().splitlines()
            raise BackendError(
                f"A first command in the container does not see the workspace ({said[-1] if said else 'no file'}): "
                "WHIPPLETREE_SANDBOX_HOST_ROOT names NYLORUN_HARNESS_ROOT as the engine's host knows it."
            )
        if lines[1].startswith("/"):
            self._shell = lines[1]
        self._grep = read_facts("\n".join(lines[2:]))
        if self._grep.problem is not None:
            get_logger().warning("sandbox_grep_not_gnu", key=self.place.key, error=self._grep.problem)

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        """See Handle."""
        if "\0" in command:
            raise BackendError("The command holds a NUL byte.")
        if signal.aborted:
            return NEVER_BEGAN
        if not self._running:
            if self._forwarder is not None:
                await self._engine.start(self._forwarder)
            await self._engine.start(self._id)
            self._running = True
        words = starter_words(self._shell, way_out=self._forwarder is not None)
        data = encode(command)
        if len(data) <= LONGEST_ARGUMENT_BYTES:
            words += ["-c", data.decode()]
        else:
            path = f"/tmp/.command-{secrets.token_hex(8)}"
            await self.write(path, data)
            words.append(path)
        async with self.watched() as overdrawn:
            return await self._run(words, timeout_ms, signal, overdrawn)

    async def _run(
        self, words: list[str], timeout_ms: float, signal: Signal, overdrawn: Latch[Kill]
    ) -> ExecResult:
        stdout, stderr = Captured(), Captured()
        killed: asyncio.Future[Kill] = asyncio.get_running_loop().create_future()

        def kill(why: Kill) -> None:
            if not killed.done():
                killed.set_result(why)

        running = asyncio.ensure_future(
            self._engine.exec(
                self._id,
                words,
                lambda is_stdout, data: (stdout if is_stdout else stderr).add(data),
            )
        )
        self._commands += 1
        try:
            with killing(kill, signal, timeout_ms, overdrawn):
                ends: set[asyncio.Future[Any]] = {running, killed}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self._kill()
                await asyncio.wait({running}, timeout=AFTER_KILL_S)
                return exec_result(stdout, stderr, 0, killed.result())
            code = running.result()
            if self._commands == 1:
                await self._kill_what_is_left()
            return exec_result(stdout, stderr, code, None)
        except BaseException:
            # Nobody waits for it any more, or nobody knows whether it still runs.
            with contextlib.suppress(BackendError):
                await self._kill()
            raise
        finally:
            self._commands -= 1
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        """See Handle: the image's own grep."""
        return await self._grep.search(query, self.exec, timeout_ms, signal)

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        """See Handle."""
        del root
        return output_of(await self.exec(command, timeout_ms, signal))

    async def stop(self) -> None:
        """Removes the containers and empties /tmp."""
        await self._backend.remove_containers(self.place.key)
        self._running = False
        await super().stop()

    def release(self) -> None:
        """See Handle."""
        super().release()
        if self._way_out is not None:
            self._way_out.close()
            self._way_out = None

    async def _kill(self) -> None:
        self._running = False
        await self._engine.kill(self._id)

    async def _kill_what_is_left(self) -> None:
        """Ends what a command left running; when nobody can say whether there is something, everything.

        Fewer processes than there are at rest mean that the command ended those that hold the container.
        """
        try:
            left = await self._engine.processes(self._id)
        except BackendError:
            left = None
        if left != RESTING_PROCESSES:
            await self._kill()
