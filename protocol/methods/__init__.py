"""The methods and messages of the Harness API as closed structures (harness-api 3 and 4).

`check_params`, `check_result` and `check_message` give a frozen struct or raise MethodInvalid. An unknown
key is a fault anywhere in a described structure; what the wire calls free ("any", "object") is passed on
unread. Absent members are `UNSET`, and null is a value. Struct fields are the wire's names in snake case.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from protocol.jsjson import JsonValue
from protocol.methods.runs import (
    CancelMessage,
    EffectCompleted,
    EffectExecute,
    EffectIntentParams,
    EffectOutcomeParams,
    EffectPending,
    EffectResolvedMessage,
    EffectUncertain,
    EventParams,
    HelloCapabilities,
    HelloParams,
    HelloResult,
    HelloSandbox,
    LeaseParams,
    LeaseReleaseParams,
    LeaseResult,
    NotRenewed,
    OutputResult,
    RecordedOutcome,
    Renewed,
    Routing,
    RoutingSandbox,
    RunOptions,
    RunParams,
    SessionMcpParams,
    SessionMcpResult,
    Thrown,
    TranscriptCursor,
    TranscriptReadResult,
    TurnOutput,
    TurnStart,
    YieldAfter,
)
from protocol.methods.shared import (
    Closed,
    EffectAgent,
    EffectHook,
    EffectIntent,
    Empty,
    Grant,
    Object,
    Outcome,
    TranscriptEdit,
    WorkspaceRecord,
)
from protocol.methods.workspaces import (
    FileRange,
    FolderRange,
    WorkspaceBytes,
    WorkspaceCall,
    WorkspaceList,
    WorkspaceRemoveParams,
    WorkspaceSession,
    WorkspaceSweepParams,
    WorkspaceSweepResult,
)

__all__ = [
    "API_VERSION",
    "CORE_METHODS",
    "HARNESS_METHODS",
    "MESSAGES",
    "OUTPUT_METHODS",
    "CancelMessage",
    "Closed",
    "EffectAgent",
    "EffectCompleted",
    "EffectExecute",
    "EffectHook",
    "EffectIntent",
    "EffectIntentParams",
    "EffectOutcomeParams",
    "EffectPending",
    "EffectResolvedMessage",
    "EffectUncertain",
    "Empty",
    "EventParams",
    "FileRange",
    "FolderRange",
    "Grant",
    "HelloCapabilities",
    "HelloParams",
    "HelloResult",
    "HelloSandbox",
    "LeaseParams",
    "LeaseReleaseParams",
    "LeaseResult",
    "MethodInvalid",
    "NotRenewed",
    "Outcome",
    "OutputResult",
    "RecordedOutcome",
    "Renewed",
    "Routing",
    "RoutingSandbox",
    "RunOptions",
    "RunParams",
    "SessionMcpParams",
    "SessionMcpResult",
    "Thrown",
    "TranscriptCursor",
    "TranscriptEdit",
    "TranscriptReadResult",
    "TurnOutput",
    "TurnStart",
    "WorkspaceBytes",
    "WorkspaceCall",
    "WorkspaceList",
    "WorkspaceRecord",
    "WorkspaceRemoveParams",
    "WorkspaceSession",
    "WorkspaceSweepParams",
    "WorkspaceSweepResult",
    "YieldAfter",
    "check_message",
    "check_params",
    "check_result",
]

API_VERSION: Final = 1


class MethodInvalid(ValueError):
    """Params, a result or a message that the wire's rules refuse.

    `code` is what the refusal carries, `path` where the fault is (`$` is the root).
    """

    code: ClassVar[Literal["invalid"]] = "invalid"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason} at {path}")
        self.path = path
        self.reason = reason


# Checking

_Check: TypeAlias = Callable[[JsonValue], Any]


def _convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, at, path = str(error).rpartition(" - at ")
        if not at:
            reason, path = path, "`$`"
        raise MethodInvalid(path.strip("`"), reason[:_REASON_LIMIT]) from None
    except UnicodeEncodeError:
        raise MethodInvalid("$", "a key or a fixed word has a lone surrogate") from None


_REASON_LIMIT: Final = 200


def _is(kind: Any) -> _Check:
    return lambda value: _convert(value, kind)


def _by_status(**kinds: type[Closed]) -> _Check:
    """One of several structures by `status`: msgspec takes a union's description anew at every call."""
    union: Any = functools.reduce(operator.or_, kinds.values())

    def check(value: JsonValue) -> Any:
        status = value.get("status") if isinstance(value, dict) else None
        kind = kinds.get(status) if isinstance(status, str) else None
        return _convert(value, union if kind is None else kind)

    return check


def _renewal(value: JsonValue) -> Renewed | NotRenewed:
    kind = NotRenewed if isinstance(value, dict) and value.get("ok") is False else Renewed
    renewal: Renewed | NotRenewed = _convert(value, kind)
    return renewal


def _workspace_read(value: JsonValue) -> WorkspaceCall | WorkspaceBytes | WorkspaceList:
    kind: type[Closed] = WorkspaceCall
    if isinstance(value, dict):
        if "list" in value:
            kind = WorkspaceList
        elif "bytes" in value:
            kind = WorkspaceBytes
    read: WorkspaceCall | WorkspaceBytes | WorkspaceList = _convert(value, kind)
    return read


def _strict_lease(value: JsonValue) -> LeaseResult:
    lease: LeaseResult = _convert(value, LeaseResult)
    routing = lease.input.routing
    if routing.plugin_roots is UNSET:
        raise MethodInvalid("$.input.routing", "Object missing required field `pluginRoots`")
    if routing.sandbox is not UNSET and routing.sandbox.environment is not UNSET:
        raise MethodInvalid("$.input.routing.sandbox", "Object contains unknown field `environment`")
    return lease


_object = _is(Object)
_empty = _is(Empty)
_run = _is(RunParams)
_call = _is(WorkspaceCall)
_output = (_is(TurnOutput), _is(OutputResult))

_METHODS: Final[Mapping[str, tuple[_Check, _Check]]] = {
    "hello": (_is(HelloParams), _is(HelloResult)),
    "lease": (_is(LeaseParams), _strict_lease),
    "lease.renew": (_run, _renewal),
    "lease.release": (_is(LeaseReleaseParams), _empty),
    "effect.intent": (
        _is(EffectIntentParams),
        _by_status(
            completed=EffectCompleted,
            pending=EffectPending,
            uncertain=EffectUncertain,
            execute=EffectExecute,
        ),
    ),
    "effect.outcome": (
        _is(EffectOutcomeParams),
        _by_status(completed=EffectCompleted, uncertain=EffectUncertain),
    ),
    "transcript.read": (_run, _is(TranscriptReadResult)),
    "event": (_is(EventParams), _empty),
    "session.mcp": (_is(SessionMcpParams), _is(SessionMcpResult)),
    "turn.completed": _output,
    "turn.paused": _output,
    "turn.waiting": _output,
    "turn.failed": _output,
    "checkpoint": _output,
    "workspace.exec": (_call, _object),
    "workspace.write": (_call, _object),
    "workspace.read": (_workspace_read, _object),
    "workspace.report": (_empty, _object),
    "workspace.sweep": (_is(WorkspaceSweepParams), _is(WorkspaceSweepResult)),
    "workspace.remove": (_is(WorkspaceRemoveParams), _empty),
}

_MESSAGES: Final[Mapping[str, _Check]] = {
    "cancel": _is(CancelMessage),
    "effect.resolved": _is(EffectResolvedMessage),
}

CORE_METHODS: Final = frozenset(name for name in _METHODS if name.startswith("workspace."))
"""Requests that core sends."""

HARNESS_METHODS: Final = frozenset(_METHODS) - CORE_METHODS
"""Requests that the harness sends."""

OUTPUT_METHODS: Final = frozenset(
    {"turn.completed", "turn.paused", "turn.waiting", "turn.failed", "checkpoint"}
)
"""Requests that end a run."""

MESSAGES: Final = frozenset(_MESSAGES)
"""Messages, all from core."""


def check_params(method: str, value: JsonValue) -> Any:
    """A request's params as their struct. Raises MethodInvalid, also for an unknown method."""
    return _method(method)[0](value)


def check_result(method: str, value: JsonValue, *, newer_core: bool = False) -> Any:
    """A request's result as its struct. Raises MethodInvalid.

    `newer_core` takes a lease as later cores send it: without plugin roots, and with an environment for
    the sandbox (harness-api 3.1).
    """
    check = _method(method)[1]
    if newer_core and method == "lease":
        check = _is(LeaseResult)
    return check(value)


def check_message(method: str, value: JsonValue) -> Any:
    """A message's params as their struct. Raises MethodInvalid, also for an unknown message."""
    check = _MESSAGES.get(method)
    if check is None:
        raise MethodInvalid("$", "unknown message")
    return check(value)


def _method(name: str) -> tuple[_Check, _Check]:
    checks = _METHODS.get(name)
    if checks is None:
        raise MethodInvalid("$", "unknown method")
    return checks
