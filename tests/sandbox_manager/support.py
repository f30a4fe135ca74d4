"""What the tests of the sandbox manager share: doubles that record, drivers, a manager, a served port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
import pytest
from whippletree.v1 import common_pb2, sandbox_manager_pb2, sandbox_manager_pb2_grpc

from services.common.channel import bearer
from services.sandbox_manager.bwrap.binary import find_bwrap
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.contract import (
    Backend,
    BackendError,
    ExecResult,
    FileTooLarge,
    GrepQuery,
    Handle,
    LineRange,
    Listing,
    Output,
    Probe,
    Traits,
)
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.disk.watch import DiskLimits
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.emulated.driver import EmulatedBackend
from services.sandbox_manager.events import SandboxEvent
from services.sandbox_manager.local.driver import LocalBackend, baseline
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.operations import Call, SessionRef
from services.sandbox_manager.records import RecordStore, load_records
from services.sandbox_manager.root import Root
from services.sandbox_manager.service import SandboxManagerService
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec, resolve_spec
from services.sandbox_manager.tools import run_tool
from tests.common.support import TOKEN, served

BOUND = 30
"""Seconds after which a wait of a test has failed."""
TENANT = "tn_a"
UID = 65_431
CLOSED = {"preset": "none"}
"""The network rules of a spec that allows no host."""
IMAGE_NAME = "WHIPPLETREE_TEST_SANDBOX_IMAGE"
"""Names the image for a run of the conformance suite on containers of the engine at DOCKER_HOST."""
LOCAL_NAME = "WHIPPLETREE_TEST_SANDBOX_LOCAL"
"""Set for a run of the conformance suite on the driver of pods, in a system with a /workspace of its own."""
DRIVERS = (
    ("container",)
    if IMAGE_NAME in os.environ
    else ("local",)
    if LOCAL_NAME in os.environ
    else ("emulated", "bwrap")
)
"""What the conformance suite runs against."""
SECOND = 60_000
"""A time limit, in milliseconds, that no command of a test is to reach."""


def identity() -> Identity | None:
    """As whom workspaces are touched here."""
    return Identity(UID, UID) if os.geteuid() == 0 else None


def make_driver(
    name: str, root: Path, dialer: Dialer | None = None, limits: DiskLimits | None = None
) -> Backend:
    """A driver over a root; `dialer` replaces what its proxies reach hosts by."""
    root.mkdir(parents=True, exist_ok=True)
    disk = WorkspaceDisk(root, identity(), limits)
    if name == "container":
        from services.sandbox_manager.container.driver import ContainerBackend
        from services.sandbox_manager.container.engine import Engine

        return ContainerBackend(disk, engine=Engine(None), egress_image=os.environ[IMAGE_NAME], dialer=dialer)
    if name == "local":
        return LocalBackend(baseline(os.environ))
    if name == "bwrap":
        return BwrapBackend(disk, find_bwrap(), dialer)
    return EmulatedBackend(disk)


def spec(key: str = "nylorun-tn_a-0000000000000000", **members: Any) -> BackendSpec:
    """A backend spec."""
    if IMAGE_NAME in os.environ:
        members.setdefault("image", os.environ[IMAGE_NAME])
    return resolve_spec(members, key)


async def tool(handle: Handle, name: str, signal: Signal | None = None, **input_: Any) -> dict[str, Any]:
    """The outcome of a tool on an open workspace."""
    async with asyncio.timeout(BOUND):
        result = await run_tool(handle, name, input_, signal or Signal())
    outcome: dict[str, Any] = dict(result.outcome)
    return outcome


async def output(handle: Handle, name: str, **input_: Any) -> Any:
    """The output of a tool that completes."""
    outcome = await tool(handle, name, **input_)
    assert outcome["kind"] == "completed", outcome
    return outcome["output"]


async def until(condition: Callable[[], object]) -> None:
    """Waits for what another process does: it tells us nothing."""
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def appears(handle: Handle, name: str) -> None:
    """Waits until a command has made a file: it tells us nothing else while it runs."""
    async with asyncio.timeout(BOUND):
        while await handle.read_bytes(f"/workspace/{name}", 10**6) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def small_volume(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own that can be filled; skips the test where nothing may be mounted."""
    folder.mkdir()
    size = f"size={mebibytes}m,mode=0755"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# A backend that does what it is told


@dataclass
class FakeHandle:
    """An open workspace in memory."""

    backend: FakeBackend
    workspace: str = "/workspace"
    created: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    stopped: bool = False
    released: bool = False

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        self.backend.said.append(f"exec {command}")
        if command in self.backend.gates:
            gate = self.backend.gates[command]
            gate.entered.set()
            async with self.backend.changed:
                self.backend.inside += 1
                self.backend.changed.notify_all()
            kinds = [asyncio.ensure_future(gate.open.wait()), asyncio.ensure_future(signal.wait())]
            await asyncio.wait(kinds, return_when=asyncio.FIRST_COMPLETED)
            for kind in kinds:
                kind.cancel()
            self.backend.said.append(f"end {command}")
            if signal.aborted:
                return ExecResult(130, "part", "", killed=True)
        if command == "throw":
            raise BackendError("the backend broke")
        return ExecResult(0, f"{command}\n", "")

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        raise BackendError("no grep")

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        return Output(sorted(self.files))

    async def read_lines(self, path: str, start: int, stop: int) -> LineRange | None:
        text = await self.read_text(path)
        if text is None:
            return None
        lines = text.split("\n")
        return LineRange(lines[start:stop], len(lines))

    async def read_text(self, path: str) -> str | None:
        data = self.files.get(path)
        return None if data is None else data.decode()

    async def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        data = self.files.get(path)
        if data is not None and len(data) > max_bytes:
            raise FileTooLarge(path, len(data), max_bytes)
        return data

    async def list_files(self, folder: str, max_entries: int) -> Listing | None:
        return Listing((), False) if folder == self.workspace else None

    async def make_folders(self, path: str, signal: Signal) -> str | None:
        return None

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def stop(self) -> None:
        self.stopped = True
        if self.backend.stop_fails:
            raise BackendError("stopping failed")

    def release(self) -> None:
        self.released = True


@dataclass
class Gate:
    """Holds a command until it is opened."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)


class FakeBackend:
    """Records what is asked of it."""

    isolation: Literal["process"] = "process"
    traits = Traits()

    def __init__(self, name: str = "virtual", available: bool = True) -> None:
        self.name = name
        self.available = available
        self.said: list[str] = []
        self.gates: dict[str, Gate] = {}
        self.handles: list[FakeHandle] = []
        self.fail_opening: list[str] = []
        self.created = False
        self.stop_fails = False
        self.kept: dict[str, dict[str, bytes]] = {}
        self.probes = 0
        self.inside = 0
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def entered(self, count: int) -> AsyncIterator[None]:
        """Waits until so many gated commands run at once."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.inside >= count)
        yield

    def gate(self, command: str) -> Gate:
        """Makes a command wait."""
        return self.gates.setdefault(command, Gate())

    async def probe(self) -> Probe:
        self.probes += 1
        return Probe(
            self.name, self.available, self.isolation, None if self.available else "it is broken", "1.0"
        )

    def unmet(self, spec: BackendSpec) -> str | None:
        return "no suffixes" if spec.network.suffixes else None

    async def open(self, spec: BackendSpec) -> Handle:
        self.said.append(f"open {spec.key}")
        if self.fail_opening:
            raise BackendError(self.fail_opening.pop(0))
        handle = FakeHandle(self, created=self.created, files=self.kept.setdefault(spec.key, {}))
        self.handles.append(handle)
        return handle

    async def remove(self, key: str) -> None:
        self.said.append(f"remove {key}")
        self.kept.pop(key, None)

    async def list(self, prefix: str) -> Sequence[str]:
        return sorted(key for key in self.kept if key.startswith(prefix))

    async def close(self) -> None:
        self.said.append("close")


class Clock:
    """Time that tests move: milliseconds since 1970, and as records have it."""

    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> float:
        return self.ms

    def text(self) -> str:
        return f"2026-01-02T03:04:{int(self.ms) % 60_000 / 1000:06.3f}Z"


@dataclass
class Rig:
    """A manager over a backend, with everything that happened in order."""

    manager: Manager
    backend: FakeBackend
    records: RecordStore
    clock: Clock
    path: Path
    events: list[SandboxEvent] = field(default_factory=list)

    async def emit(self, event: SandboxEvent) -> None:
        """Notes an event, and that it was answered before anything else happens."""
        self.events.append(event)
        state = event.payload.get("state") or event.payload.get("tool")
        self.backend.said.append(f"event {state}")

    def call(self, owner: str = "s1", sandbox: str | None = None, spec: Any = None, **more: Any) -> Call:
        """A call of a session."""
        return Call(SessionRef(owner, sandbox, "turn-1"), spec or {}, emit=self.emit, **more)

    def stored(self) -> list[dict[str, Any]]:
        """The records on the disk."""
        records: list[dict[str, Any]] = json.loads(self.path.read_text())["records"]
        return records


async def make_rig(folder: Path, backend: FakeBackend | None = None, preference: str = "auto") -> Rig:
    """A manager with its records in `folder`."""
    clock, backend = Clock(), backend or FakeBackend()
    path = folder / "records.json"
    records = await load_records(path, clock.text, lambda: "stamp")
    manager = Manager(TENANT, preference, [backend], records, clock.now_ms)
    return Rig(manager, backend, records, clock, path)


# Over gRPC


@dataclass
class Port:
    """A served manager and a client's end."""

    stub: sandbox_manager_pb2_grpc.SandboxManagerStub
    service: SandboxManagerService
    rig: Rig | None
    metadata: Any

    def run(self) -> Any:
        """A fresh stream."""
        return self.stub.Run(metadata=self.metadata)


@contextlib.asynccontextmanager
async def fake_port(folder: Path, **more: Any) -> AsyncIterator[Port]:
    """A port over a fake backend."""
    rig = await make_rig(folder)
    async with port_over(folder, lambda tenant, preference: rig.manager, **more) as port:
        port.rig = rig
        yield port


@contextlib.asynccontextmanager
async def port_over(folder: Path, make: Callable[[str, str], Manager], **more: Any) -> AsyncIterator[Port]:
    """A port over any manager."""
    root = Root(folder)
    root.take()
    service = SandboxManagerService(root, make, **more)
    try:
        async with served(service) as end:
            stub = sandbox_manager_pb2_grpc.SandboxManagerStub(end.channel)
            yield Port(stub, service, None, bearer(TOKEN))
    finally:
        root.release()


def request(
    *,
    owner: str = "s1",
    sandbox: str | None = None,
    effect: str | None = "effect-1",
    tenant: str = TENANT,
    epoch: int = 1,
    spec: str = "",
    **operation: Any,
) -> sandbox_manager_pb2.RunRequest:
    """The first message of a stream; `bash="…"` is short for that tool."""
    if "bash" in operation:
        text = json.dumps({"command": operation.pop("bash")})
        operation["tool"] = sandbox_manager_pb2.ToolOperation(tool="bash", input=common_pb2.Json(text=text))
    return sandbox_manager_pb2.RunRequest(
        request=sandbox_manager_pb2.WorkspaceOperation(
            tenant=sandbox_manager_pb2.TenantRef(tenant_id=tenant, preference="auto"),
            workspace=sandbox_manager_pb2.WorkspaceRef(
                owner_id=owner, sandbox_id=sandbox, active_turn_id="turn-1"
            ),
            spec=common_pb2.Json(text=spec),
            effect=None
            if effect is None
            else common_pb2.EffectRef(
                tenant_id=tenant, session_id="s1", turn_id="turn-1", effect_id=effect, epoch=epoch
            ),
            **operation,
        )
    )


START = sandbox_manager_pb2.RunRequest(start=common_pb2.Start())


def abort(kind: int = common_pb2.ABORT_KIND_CANCEL) -> sandbox_manager_pb2.RunRequest:
    """An abort in band."""
    return sandbox_manager_pb2.RunRequest(abort=common_pb2.Aborted(kind=kind))


def ack(seq: int) -> sandbox_manager_pb2.RunRequest:
    """The answer to an event."""
    return sandbox_manager_pb2.RunRequest(ack=sandbox_manager_pb2.EventAck(seq=seq))


async def read(stream: Any) -> Any:
    """The next reply."""
    async with asyncio.timeout(BOUND):
        return await stream.read()


async def begin(stream: Any, first: sandbox_manager_pb2.RunRequest) -> Any:
    """Says start when the turn has come; an end that comes instead is given back."""
    await stream.write(first)
    async with asyncio.timeout(BOUND):
        accepted = dict(await stream.initial_metadata()).get("x-whippletree-accepted") == "1"
    while not accepted:
        reply = await read(stream)
        kind = reply.WhichOneof("message") if reply is not grpc.aio.EOF else "end"
        if kind not in {"queued", "accepted"}:
            return reply
        accepted = kind == "accepted"
    await stream.write(START)
    return None


async def converse(stream: Any, first: sandbox_manager_pb2.RunRequest) -> tuple[list[Any], Any]:
    """A whole conversation: the events, each answered, and the end."""
    ended = await begin(stream, first)
    events: list[Any] = []
    if ended is not None:
        return events, ended
    while (reply := await read(stream)) is not grpc.aio.EOF and reply.WhichOneof("message") == "event":
        events.append(reply.event)
        await stream.write(ack(reply.event.seq))
    return events, reply


def outcome_of(reply: Any) -> dict[str, Any]:
    """The outcome document of a final reply."""
    assert reply.WhichOneof("message") == "outcome", reply
    document: dict[str, Any] = json.loads(reply.outcome.text)
    return document
