"""What several methods share: the kinds of members, and structures (harness-api 2.2, 3)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_INTEGER: Final = 2**53 - 1

Id = Annotated[str, Meta(min_length=1, max_length=512)]
Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(min_length=1, max_length=512)]
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Number: TypeAlias = int | float
Object: TypeAlias = dict[str, Any]


class Closed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A described structure: no keys but its own."""


def check_finite(*numbers: Number | UnsetType) -> None:
    """Raises ValueError for a number too large for a double."""
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise ValueError("a number is not finite")


class Grant(Closed, frozen=True, kw_only=True):
    """A leased run."""

    run_id: Id
    session_id: Id
    turn_id: Id
    epoch: Integer
    token: str | UnsetType = UNSET
    token_expires_at: str | UnsetType = UNSET


class Outcome(Closed, frozen=True, kw_only=True):
    """What an effect came to."""

    value: Any
    state_patch: Object | UnsetType = UNSET


class EffectAgent(Closed, frozen=True, kw_only=True):
    """The agent an effect belongs to, when it is not the root."""

    id: str
    path: str
    delegation_id: str | UnsetType = UNSET


class EffectHook(Closed, frozen=True, kw_only=True):
    """The point a hook effect runs at."""

    at: Literal["before", "after"]
    scope: Literal["turn", "step"]
    capability_ids: list[str]


class EffectIntent(Closed, frozen=True, kw_only=True):
    """One effect as core is asked for it; a model's carries no input."""

    effect_id: Id
    session_id: Id
    turn_id: Id
    agent_id: Id
    manifest_hash: str
    kind: Literal["model", "tool", "hook", "delegation", "agent", "fn", "verify"]
    agent: EffectAgent | UnsetType = UNSET
    capability_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    hook: EffectHook | UnsetType = UNSET
    path: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    iterations: str | UnsetType = UNSET
    input: Any = UNSET
    context: Object


class WorkspaceRecord(Closed, frozen=True, kw_only=True):
    """A workspace as the sandbox manager keeps it."""

    key: Key
    session_id: Id
    sandbox_id: Id | UnsetType = UNSET
    backend: str
    image: str
    state: Literal["creating", "running", "stopped"]
    created_at: str
    updated_at: str


class TranscriptEdit(Closed, frozen=True, kw_only=True):
    """One edit of a transcript (see protocol.transcript)."""

    keep: Natural
    entries: list[Any]
    length: Natural


class Empty(Closed, frozen=True, kw_only=True):
    """An object without members."""
