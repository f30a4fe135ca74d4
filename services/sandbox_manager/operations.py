"""What callers of the manager give and get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Listing
from services.sandbox_manager.events import Emit, SandboxEvent
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.turns import Waiting


class OperationAborted(Exception):
    """An operation was aborted before its turn came: nothing was done."""

    def __init__(self, kind: str) -> None:
        super().__init__("Turn cancelled")
        self.kind = kind


class ManagerClosing(Exception):
    """The manager closes: nothing was done."""

    def __init__(self) -> None:
        super().__init__("Runtime is shutting down")


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Whose workspace: the owner session's own, or a sandbox that sessions share."""

    owner_id: str
    sandbox_id: str | None = None
    active_turn_id: str | None = None


async def nobody(event: SandboxEvent) -> None:
    """Tells nobody."""
    del event


async def _at_once(limit_ms: float) -> None:
    del limit_ms


@dataclass(frozen=True, slots=True)
class Call:
    """One caller of an operation.

    `emit` claims events for it; `waiting` hears its place in the queue; `begin` is awaited when its turn has
    come and before anything is done, with the longest that the work may take in milliseconds.
    """

    session: SessionRef
    spec: JsonValue
    signal: Signal = field(default_factory=Signal)
    emit: Emit = nobody
    waiting: Waiting | None = None
    begin: Callable[[float], Awaitable[None]] = _at_once


@dataclass(frozen=True, slots=True)
class BytesRead:
    """A file's bytes and its resolved path."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Listed:
    """A listing and the folder's resolved path."""

    path: str
    listing: Listing


@dataclass(frozen=True, slots=True)
class Missing:
    """There is nothing at this path."""

    path: str
