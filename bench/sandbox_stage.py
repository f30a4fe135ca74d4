"""Workspaces of benchmarks: of a sandbox-manager process called as a gateway calls it, and of a driver here."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)
from bench.environment import spec_of, stack_plan
from bench.processes import child
from bench.run_context import SESSION, TENANT, run_context, tool_effect
from bench.sandbox_route import CAPABILITY, manifest
from cli.ports import HOST
from cli.stack import MCP, SANDBOX
from gateway.executors import mcp as mcp_pool
from gateway.executors import sandbox
from gateway.executors.contract import AbortSignal
from gateway.executors.mcp import GrpcMcp
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.sandbox import SandboxCalls
from gateway.executors.timings import ExecutorTimings
from gateway.executors.tools import GrpcToolExecutor
from gateway.settings import Target
from protocol.jsjson import JsonValue
from services.common.channel import DEFAULT_MAX_MESSAGE_BYTES
from services.sandbox_manager.contract import Backend, Handle
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.drivers import VirtualDriver, make_backend, workspaces_identity
from services.sandbox_manager.keys import workspace_key
from services.sandbox_manager.settings import DEFAULT_UID
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import resolve_spec
from services.sandbox_manager.tools import run_tool

BWRAP: Final[VirtualDriver] = "bwrap"
EMULATED: Final[VirtualDriver] = "emulated"
DRIVERS: Final = (BWRAP, EMULATED)


@dataclass(frozen=True, slots=True)
class ServedSandbox:
    """The running manager."""

    pid: int
    root: Path
    tools: GrpcToolExecutor

    async def call(self, tool: str, input_: JsonValue, session: str = SESSION) -> Any:
        """The output of a tool. What does not complete ends the benchmark."""
        effect = tool_effect(CAPABILITY, tool, input_)
        run = run_context(manifest(), session=session)
        outcome: Any = (await self.tools.execute(effect, run, AbortSignal(), False)).value
        assert outcome["kind"] == "completed", outcome
        return outcome["output"]

    def folder(self, session: str = SESSION) -> Path:
        """Where a session's workspace lies on the disk, with its `tmp`."""
        return self.root / "sandboxes" / workspace_key(TENANT, session, None)


@contextlib.asynccontextmanager
async def served_sandbox(driver: str) -> AsyncIterator[ServedSandbox]:
    """Starts the manager with a driver. Raises NotReady, and AssertionError where the driver can't be used."""
    with contextlib.ExitStack() as folders:
        plan = folders.enter_context(stack_plan([]))
        root = folders.enter_context(_passable_folder())
        spec = spec_of(plan, SANDBOX)
        settings = {"NYLORUN_HARNESS_ROOT": str(root), "WHIPPLETREE_SANDBOX_DRIVER": driver}
        async with child(f"{SANDBOX} {driver}", spec.argv, {**spec.environ, **settings}) as manager:
            await manager.ready("grpc_serving")
            target = Target("sandbox-0", f"{HOST}:{plan.ports.sandbox_manager}")
            token = plan.state.token_file(SANDBOX).read_text(encoding="ascii").strip()
            timings = ExecutorTimings()
            shards = _replicas(SANDBOX, sandbox.FULL_NAME, (target,), token, timings, sharded=True)
            # These runs have no MCP servers: no call goes there.
            pool = _replicas(MCP, mcp_pool.FULL_NAME, (), None, timings, sharded=False)
            await shards.open()
            try:
                tools = GrpcToolExecutor(GrpcMcp(pool, timings), SandboxCalls(shards, timings))
                yield ServedSandbox(manager.pid, root, tools)
            finally:
                await shards.close()


@contextlib.contextmanager
def _passable_folder() -> Iterator[Path]:
    """Where commands run as another user, that user has to get to the workspaces, as in an installation."""
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def _replicas(
    service: str,
    full_name: str,
    targets: tuple[Target, ...],
    token: str | None,
    timings: ExecutorTimings,
    *,
    sharded: bool,
) -> ReplicaSet:
    return ReplicaSet(
        service,
        full_name,
        targets,
        token=token,
        timings=timings,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
        sharded=sharded,
    )


def by_hand(words: Sequence[str], **more: Any) -> bytes:
    """Runs a program as a person would, and reads its output: some do less when nobody does."""
    ended: subprocess.CompletedProcess[bytes] = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, check=False, **more
    )
    # 1 is what grep says when it found nothing.
    assert ended.returncode in {0, 1}, ended.stderr
    return ended.stdout


@contextlib.asynccontextmanager
async def open_workspace(driver: VirtualDriver) -> AsyncIterator[OpenWorkspace]:
    """A workspace of a driver in this process."""
    with _passable_folder() as root:
        backend = make_backend(driver, WorkspaceDisk(root, workspaces_identity(DEFAULT_UID)))
        try:
            probe = await backend.probe()
            assert probe.available, probe.reason
            spec = resolve_spec({"network": {"preset": "none"}}, workspace_key(TENANT, SESSION, None))
            handle = await backend.open(spec)
            try:
                yield OpenWorkspace(backend, handle, root / spec.key / "workspace")
            finally:
                handle.release()
        finally:
            await backend.close()


@dataclass(frozen=True, slots=True)
class OpenWorkspace:
    """The workspace and its folder on the disk."""

    backend: Backend
    handle: Handle
    folder: Path

    async def tool(self, name: str, input_: JsonValue) -> str:
        """The output of one of the tools that answer with text."""
        outcome = (await run_tool(self.handle, name, input_, Signal())).outcome
        assert outcome["kind"] == "completed", outcome
        output = outcome["output"]
        assert isinstance(output, str)
        return output
