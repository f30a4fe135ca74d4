"""Workspaces opened, stopped and let go of, with their records and events (sandbox-manager 6.3 and 6.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from protocol.jsjson import JsonValue
from services.common.logs import error_text, get_logger
from services.sandbox_manager.contract import Backend, BackendError, Handle
from services.sandbox_manager.events import (
    LOST_NOTE,
    STATE,
    Emit,
    SandboxEvent,
    opening_payload,
    stopped_payload,
)
from services.sandbox_manager.operations import Call
from services.sandbox_manager.records import Record, RecordStore, State
from services.sandbox_manager.specs import BackendSpec
from services.sandbox_manager.turns import Turns

_T = TypeVar("_T")

OPENING_LIMIT_S: Final = 120
"""For making a workspace or attaching to it (operations 12.7)."""


@dataclass(slots=True)
class Entry:
    """A workspace in use. The owner, the sandbox and the idle time are those of the first caller."""

    key: str
    owner_id: str
    sandbox_id: str | None
    idle_ms: int
    handle: Handle | None = None
    active: int = 0
    last_used_ms: float = 0
    removed: bool = False
    turns: Turns = field(default_factory=Turns)


@dataclass(frozen=True, slots=True)
class Turn:
    """An operation whose turn has come."""

    entry: Entry
    backend: Backend
    spec: BackendSpec


class StartFailed(Exception):
    """The backend could not open a workspace."""


class Compute:
    """Opens and stops workspaces; what happens is recorded before it is told."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def open(self, turn: Turn, call: Call) -> Handle:
        """The entry's handle, opened when there is none (6.3). Raises StartFailed, BackendError."""
        entry, backend, spec = turn.entry, turn.backend, turn.spec
        if entry.handle is not None:
            return entry.handle
        existed = self._records.existed(entry.key)
        record = await self._put(turn, call, "creating")
        network = spec.network.describe()
        payload = opening_payload("creating", backend.name, backend.isolation, spec.image, network)
        if existed:
            payload["reattach"] = True
        await call.emit(_state(call, payload, record))
        try:
            async with asyncio.timeout(OPENING_LIMIT_S):
                handle = await backend.open(spec)
        except TimeoutError:
            raise StartFailed(f"The workspace was not ready within {OPENING_LIMIT_S} s.") from None
        except BackendError as error:
            raise StartFailed(str(error)) from error
        try:
            record = await self._put(turn, call, "running")
            payload = opening_payload("running", backend.name, backend.isolation, spec.image, network)
            if existed and handle.created:
                payload["lost"] = True
                payload["note"] = LOST_NOTE
            await call.emit(_state(call, payload, record))
        except BaseException:
            handle.release()
            raise
        entry.handle = handle
        return handle

    async def start_failed(self, turn: Turn, call: Call, error: str) -> None:
        """Records and tells that a workspace could not be opened for a tool."""
        try:
            record = await self._put(turn, call, "stopped")
        except BackendError as second:
            # The start's own failure is the one to tell; the next sweep mends the record.
            get_logger().warning("sandbox_record_failed", key=turn.entry.key, error=error_text(second))
            return
        await call.emit(_state(call, stopped_payload(turn.backend.name, error), record))

    async def stop(self, entry: Entry, backend: str, emit: Emit) -> None:
        """Ends a workspace's compute; its files stay. Whatever fails is logged."""
        handle, entry.handle = entry.handle, None
        if handle is None:
            return
        try:
            await handle.stop()
        except BackendError as error:
            get_logger().warning("sandbox_stop_failed", key=entry.key, error=error_text(error))
        finally:
            handle.release()
        try:
            record = await recording(
                self._records.put(
                    entry.key,
                    session_id=entry.owner_id,
                    sandbox_id=entry.sandbox_id,
                    backend=backend,
                    state="stopped",
                )
            )
        except BackendError as error:
            get_logger().warning("sandbox_stop_failed", key=entry.key, error=error_text(error))
            return
        await emit(SandboxEvent(entry.owner_id, None, STATE, stopped_payload(backend), record))

    async def _put(self, turn: Turn, call: Call, state: State) -> Record:
        return await recording(
            self._records.put(
                turn.entry.key,
                session_id=call.session.owner_id,
                sandbox_id=call.session.sandbox_id,
                backend=turn.backend.name,
                state=state,
                image=turn.spec.image,
            )
        )


def let_go(entry: Entry) -> None:
    """Lets go of a workspace's compute; the next call opens it again."""
    handle, entry.handle = entry.handle, None
    if handle is not None:
        handle.release()


async def recording(writing: Awaitable[_T]) -> _T:
    """Waits for a change of the records. Raises BackendError."""
    try:
        return await writing
    except OSError as error:
        raise BackendError(f"The workspace's record can't be written: {error.strerror}.") from error


def _state(call: Call, payload: dict[str, JsonValue], record: Record) -> SandboxEvent:
    return SandboxEvent(call.session.owner_id, call.session.active_turn_id, STATE, payload, record)
