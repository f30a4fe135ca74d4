"""What the run loop needs of whoever executes effects: in one process or over gRPC behind the same names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.engine.contract import Abort, AbortKind, EffectRequest
from protocol.jsjson import JsonValue, Parsed
from services.common.latch import Latch

__all__ = [
    "Abort",
    "AbortKind",
    "AbortSignal",
    "Discovery",
    "ExecutionFailed",
    "Executors",
    "McpServers",
    "ModelExecutor",
    "RunAborted",
    "RunContext",
    "SandboxEvent",
    "SandboxRouting",
    "ToolExecutor",
    "WorkspaceCaller",
    "WorkspaceFailed",
    "Workspaces",
]


class RunAborted(Exception):
    """Raised out of a wait because the run was aborted."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort.message)
        self.abort = abort


class ExecutionFailed(Exception):
    """An effect has no outcome: it is reported with this message and becomes uncertain (harness-api 6.8)."""


class AbortSignal(Latch[Abort]):
    """A run's abort: set once, the first one wins."""

    __slots__ = ()

    @property
    def abort(self) -> Abort | None:
        """The abort, or None."""
        return self.value

    def raise_if_set(self) -> None:
        """Raises RunAborted when aborted."""
        if self.value is not None:
            raise RunAborted(self.value)


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """An event that the sandbox side raises, to be claimed at core (harness-api 4.1)."""

    session_id: str
    turn_id: str | None
    type: str
    payload: JsonValue
    record: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class SandboxRouting:
    """`routing.sandbox` of a run."""

    owner_id: str
    sandbox_id: str | None = None


@dataclass(slots=True)
class RunContext:
    """What executors may know of a run.

    `token` gives the session's newest run token at the moment of asking. `claim_event` claims a sandbox
    event for this run and returns when core has answered or refused it, or there is no connection; it
    never raises anything but cancellation. `mcp_snapshot` is the snapshot in force for the run.
    """

    tenant_id: str
    preference: str
    run_id: str
    session_id: str
    turn_id: str
    epoch: int
    agent_id: str
    fixture_model: bool
    root_manifest: Mapping[str, JsonValue]
    plugin_roots: Mapping[str, str]
    token: Callable[[], str | None]
    claim_event: Callable[[SandboxEvent], Awaitable[None]]
    mcp_snapshot: JsonValue = None
    sandbox: SandboxRouting | None = None
    pins: dict[str, object] = field(default_factory=dict)
    """Replica choices that hold for this run, kept by the executors."""


class ModelExecutor(Protocol):
    """Executes effects of kind `model` (model-executor 4 and 6)."""

    def recovers(self) -> bool:
        """A call may be sent again under its effect id after a loss."""
        ...

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        """The outcome document. A provider's failure is a value.

        Raises RunAborted when the signal stopped it (after the route's cancel for kind `cancel`), and
        ExecutionFailed for nothing else than a fault that has no value.
        """
        ...


class ToolExecutor(Protocol):
    """Executes every other kind of effect: MCP tools and sandbox tools (mcp-pool 8.1, sandbox-manager 11.1)."""

    def recovers(self, effect: EffectRequest, run: RunContext) -> bool:
        """The effect is a remote MCP call at a gate that recovers."""
        ...

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        """The outcome document. Raises RunAborted, or ExecutionFailed (the effect becomes uncertain)."""
        ...

    async def cancel(self, effect: EffectRequest, run: RunContext) -> None:
        """Asks the gate to cancel an effect that recovers. Never fails; at most 3 s."""
        ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """What discovery found (mcp-pool 5)."""

    snapshot: JsonValue
    diagnostics: Sequence[JsonValue]


class McpServers(Protocol):
    """Prepares a run's MCP servers."""

    async def discover(self, run: RunContext, manifest_hash: str, signal: AbortSignal) -> Discovery:
        """Opens and lists all servers of the root manifest. Raises RunAborted, ExecutionFailed."""
        ...

    async def reconnect(
        self, run: RunContext, snapshot: JsonValue, signal: AbortSignal
    ) -> Sequence[JsonValue]:
        """Opens the snapshot's servers; returns diagnostics. Raises RunAborted, ExecutionFailed."""
        ...

    async def put_grant(self, session_id: str, epoch: int, token: str, expires_at: str | None) -> None:
        """Hands a renewed token over. Never fails."""
        ...


class WorkspaceFailed(Exception):
    """A workspace request is refused: `code` is a Harness API error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class WorkspaceCaller:
    """Who a `workspace.*` request of core's is for (harness-api 4)."""

    tenant_id: str
    preference: str
    owner_id: str
    sandbox_id: str | None
    active_turn_id: str | None
    claim_event: Callable[[SandboxEvent], Awaitable[None]]


class Workspaces(Protocol):
    """Serves core's `workspace.*` requests. All raise WorkspaceFailed and RunAborted."""

    async def run(
        self, caller: WorkspaceCaller, spec: JsonValue, tool: str, input_: JsonValue, signal: AbortSignal
    ) -> Parsed:
        """A tool's outcome document."""
        ...

    async def read_bytes(
        self, caller: WorkspaceCaller, spec: JsonValue, path: str, max_bytes: int, signal: AbortSignal
    ) -> JsonValue:
        """{kind: "read", path, base64}, {kind: "missing", path}, or a failed outcome."""
        ...

    async def list_files(
        self, caller: WorkspaceCaller, spec: JsonValue, dir_: str, max_entries: int, signal: AbortSignal
    ) -> JsonValue:
        """{kind: "listed", path, listing: {entries, truncated}}, {kind: "missing", path}, or a failed outcome."""
        ...

    async def report(self, tenant_id: str, preference: str) -> JsonValue:
        """The backend report."""
        ...

    async def sweep(
        self,
        tenant_id: str,
        preference: str,
        now_ms: float | None,
        claim_event: Callable[[SandboxEvent], Awaitable[None]],
    ) -> Sequence[JsonValue]:
        """Stops idle workspaces, returns all records."""
        ...

    async def remove(
        self, tenant_id: str, preference: str, all_: bool, keys: Sequence[str], sandbox_ids: Sequence[str]
    ) -> None:
        """Deletes workspaces."""
        ...


@dataclass(frozen=True, slots=True)
class Executors:
    """All that stands behind a gateway. `workspaces` None: `hello` declares no workspace capability."""

    model: ModelExecutor
    tools: ToolExecutor
    mcp: McpServers
    workspaces: Workspaces | None
