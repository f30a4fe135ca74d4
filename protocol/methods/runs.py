"""Requests from harness to core, and core's messages: runs from lease to output (harness-api 3)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from protocol.methods.shared import (
    Closed,
    EffectIntent,
    Grant,
    Hash,
    Id,
    Integer,
    Natural,
    Number,
    Object,
    Outcome,
    Positive,
    TranscriptEdit,
    WorkspaceRecord,
    check_finite,
)


class HelloCapabilities(Closed, frozen=True, kw_only=True):
    """What the harness can do; `workspace` present with any value means it has workspaces."""

    workspace: Any = UNSET


class HelloParams(Closed, frozen=True, kw_only=True):
    """The harness introduces itself."""

    api: Integer
    name: str
    version: str
    capabilities: HelloCapabilities


class HelloSandbox(Closed, frozen=True, kw_only=True):
    """The sandbox backend core prefers."""

    backend: str | None


class HelloResult(Closed, frozen=True, kw_only=True):
    """Core's side of the introduction; any other API version is refused."""

    api: Literal[1]
    tenant_id: Id
    sandbox: HelloSandbox
    renew_every_ms: Positive


class LeaseParams(Closed, frozen=True, kw_only=True):
    """Asks for the next run."""

    slots: Positive | UnsetType = UNSET


class RecordedOutcome(Closed, frozen=True, kw_only=True):
    """A completed effect of the segment."""

    effect_id: Id
    request_hash: str
    outcome: Outcome


class TranscriptCursor(Closed, frozen=True, kw_only=True):
    """The record position a transcript stands at; -1 for none."""

    cursor: Integer


class YieldAfter(Closed, frozen=True, kw_only=True):
    """When an agent's segment rolls over."""

    steps: Number | UnsetType = UNSET
    ms: Number | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_finite(self.steps, self.ms)


class RunOptions(Closed, frozen=True, kw_only=True):
    """How core wants the segment run."""

    yield_after: YieldAfter | UnsetType = UNSET
    flow_limits: Any = UNSET
    fixture_model: bool
    hold_ms: Natural | UnsetType = UNSET


class RoutingSandbox(Closed, frozen=True, kw_only=True):
    """Whose workspace the run uses. Only newer cores send `environment`."""

    owner_id: Id
    sandbox_id: Id | UnsetType = UNSET
    spec: Any = UNSET
    environment: dict[str, str] | UnsetType = UNSET


class Routing(Closed, frozen=True, kw_only=True):
    """Where the run's calls go. Newer cores leave `plugin_roots` out."""

    root_manifest: Object
    plugin_roots: dict[str, str] | UnsetType = UNSET
    mcp_snapshot: Any = UNSET
    sandbox: RoutingSandbox | UnsetType = UNSET


class TurnStart(Closed, frozen=True, kw_only=True):
    """The segment to run."""

    type: Literal["turn.start", "approval.answer"]
    engine: Literal["agent", "flow"]
    manifest: Object
    checkpoint: Object
    session_tools: list[Any] | UnsetType = UNSET
    outcomes: list[RecordedOutcome]
    transcript: TranscriptCursor
    options: RunOptions
    routing: Routing


class LeaseResult(Closed, frozen=True, kw_only=True):
    """A run and what it starts from."""

    run: Grant
    input: TurnStart


class RunParams(Closed, frozen=True, kw_only=True):
    """A request about a run that says nothing more."""

    run_id: Id


class Renewed(Closed, frozen=True, kw_only=True):
    """The lease lives on."""

    ok: bool
    token: str | UnsetType = UNSET
    token_expires_at: str | UnsetType = UNSET


class NotRenewed(Closed, frozen=True, kw_only=True):
    """The lease is lost."""

    ok: bool


class LeaseReleaseParams(Closed, frozen=True, kw_only=True):
    """The harness lets a run go without an output."""

    run_id: Id
    reason: Literal["shutdown", "ownership.lost", "connection.lost"]


class EffectIntentParams(Closed, frozen=True, kw_only=True):
    """Asks what to do about an effect."""

    run_id: Id
    effect: EffectIntent
    request_hash: Hash


class EffectCompleted(Closed, frozen=True, kw_only=True, tag_field="status", tag="completed"):
    """The effect has its outcome."""

    outcome: Outcome


class EffectPending(Closed, frozen=True, kw_only=True, tag_field="status", tag="pending"):
    """Core completes the effect later."""


class EffectUncertain(Closed, frozen=True, kw_only=True, tag_field="status", tag="uncertain"):
    """Nobody knows whether the effect ran."""


class EffectExecute(Closed, frozen=True, kw_only=True, tag_field="status", tag="execute"):
    """The harness runs the effect; `rejoin` when an earlier run may have started it."""

    rejoin: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.rejoin is False:
            raise ValueError("rejoin is true or absent")


class EffectOutcomeParams(Closed, frozen=True, kw_only=True):
    """Reports what executing an effect gave: a value or an error, never both."""

    run_id: Id
    effect_id: Id
    value: Any = UNSET
    error: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.value is UNSET) == (self.error is UNSET):
            raise ValueError("an outcome has a value or an error")


class TranscriptReadResult(Closed, frozen=True, kw_only=True):
    """A session's transcript."""

    cursor: Integer
    entries: list[Any]


class EventParams(Closed, frozen=True, kw_only=True):
    """A sandbox event that the harness claims for a session."""

    run_id: Id | UnsetType = UNSET
    session_id: Id
    turn_id: Id | None
    type: Literal["sandbox.state", "sandbox.exec"]
    payload: Any
    record: WorkspaceRecord | UnsetType = UNSET


class SessionMcpParams(Closed, frozen=True, kw_only=True):
    """What MCP discovery found."""

    run_id: Id
    snapshot: Any = UNSET
    diagnostics: list[Any]


class SessionMcpResult(Closed, frozen=True, kw_only=True):
    """The snapshot that counts for the session, and its tools."""

    snapshot: Any
    session_tools: list[Any]


class Thrown(Closed, frozen=True, kw_only=True):
    """The engine refused to run or failed."""

    code: str | UnsetType = UNSET
    message: str


class TurnOutput(Closed, frozen=True, kw_only=True):
    """How a segment ended."""

    run_id: Id
    status: (
        Literal["completed", "paused", "yielded", "waiting", "uncertain", "failed", "cancelled"] | UnsetType
    ) = UNSET
    state: Any = UNSET
    output: Any = UNSET
    pending: Any = UNSET
    error: Any = UNSET
    effect_ids: list[str] | UnsetType = UNSET
    cancel_effect_ids: list[str] | UnsetType = UNSET
    transcript: list[TranscriptEdit] | UnsetType = UNSET
    thrown: Thrown | UnsetType = UNSET


class OutputResult(Closed, frozen=True, kw_only=True):
    """The record position after the output, when its transcript was kept."""

    cursor: Integer | UnsetType = UNSET


# Messages from core


class CancelMessage(Closed, frozen=True, kw_only=True):
    """Aborts a run."""

    run_id: Id
    reason: Literal["cancel", "shutdown", "deadline", "ownership.lost"]
    message: str | UnsetType = UNSET


class EffectResolvedMessage(Closed, frozen=True, kw_only=True):
    """The outcome of an effect that was pending."""

    run_id: Id
    effect_id: Id
    outcome: Outcome
