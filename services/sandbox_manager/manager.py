"""The manager of workspaces (sandbox-manager 6): who may work when, what is recorded and what core is told.

One per process and tenant. It keeps no timers: core drives idle stops and removals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from protocol.jsjson import JsonValue
from services.common.late import Late
from services.common.logs import error_text, get_logger
from services.sandbox_manager import outcomes
from services.sandbox_manager.contract import Backend, BackendError, FileTooLarge, Handle
from services.sandbox_manager.events import (
    EXEC,
    LOST_NOTE,
    STATE,
    Emit,
    SandboxEvent,
    exec_payload,
    opening_payload,
    stopped_payload,
)
from services.sandbox_manager.keys import key_prefix, resource_key, workspace_key
from services.sandbox_manager.operations import (
    BytesRead,
    Call,
    Listed,
    ManagerClosing,
    Missing,
    OperationAborted,
    SessionRef,
    nobody,
)
from services.sandbox_manager.outcomes import Outcome, failed
from services.sandbox_manager.paths import resolve
from services.sandbox_manager.records import Record, RecordStore, State
from services.sandbox_manager.selection import Probes, Selection, Selector
from services.sandbox_manager.specs import BackendSpec, resolve_spec
from services.sandbox_manager.tools import HELPER_TIMEOUT_MS, READ_TOOLS, run_tool, tool_limit_ms
from services.sandbox_manager.turns import Turns

_T = TypeVar("_T")

OPENING_LIMIT_S: Final = 120
"""For making a workspace or attaching to it (operations 12.7)."""


@dataclass(slots=True)
class _Entry:
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
class _Turn:
    """An operation whose turn has come."""

    entry: _Entry
    backend: Backend
    spec: BackendSpec


class Manager:
    """All workspaces of a tenant. `now_ms` gives milliseconds since 1970."""

    def __init__(
        self,
        tenant_id: str,
        preference: str,
        backends: Sequence[Backend] | Probes,
        records: RecordStore,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._tenant_id = tenant_id
        probes = backends if isinstance(backends, Probes) else Probes(backends)
        self._selector = Selector(preference, probes)
        self._records = records
        self._now_ms = now_ms
        self._entries: dict[str, _Entry] = {}
        self._closing = False

    # Operations

    async def run(self, call: Call, tool: str, input_: JsonValue | Late[JsonValue]) -> Outcome:
        """Runs one of the six tools (6.4). Raises OperationAborted, ManagerClosing, BackendError.

        A late input is asked for when `begin` has returned; a command's must not be late.

        What it raises after `begin` returned leaves the effect uncertain.
        """
        limit_ms = tool_limit_ms(tool, None if isinstance(input_, Late) else input_)
        async with self._turn(call, limit_ms) as turn:
            if not isinstance(turn, _Turn):
                return turn
            try:
                handle = await self._open(turn, call)
            except _StartFailed as error:
                await self._start_failed(turn, call, str(error))
                return failed(outcomes.START_FAILED, str(error))
            known = input_.value if isinstance(input_, Late) else input_
            return await self._run(turn.entry, call, handle, tool, known)

    async def read_bytes(self, call: Call, path: str, max_bytes: int) -> BytesRead | Missing | Outcome:
        """A file whole (10). Raises OperationAborted, ManagerClosing, BackendError."""
        async with self._turn(call, HELPER_TIMEOUT_MS) as turn:
            if not isinstance(turn, _Turn):
                return turn
            try:
                handle = await self._open(turn, call)
            except _StartFailed as error:
                return failed(outcomes.START_FAILED, str(error))
            resolved = resolve(path, handle.workspace)
            try:
                data = await handle.read_bytes(resolved, max_bytes)
            except FileTooLarge as error:
                return failed(outcomes.TOO_LARGE, str(error))
            return Missing(resolved) if data is None else BytesRead(resolved, data)

    async def list_files(self, call: Call, folder: str, max_entries: int) -> Listed | Missing | Outcome:
        """The regular files below a folder (10). A workspace that never was is not made for it.

        Raises OperationAborted, ManagerClosing, BackendError.
        """
        async with self._turn(call, HELPER_TIMEOUT_MS) as turn:
            if not isinstance(turn, _Turn):
                return turn
            if turn.entry.handle is None and not self._records.existed(turn.entry.key):
                return Missing(folder)
            try:
                handle = await self._open(turn, call)
            except _StartFailed as error:
                return failed(outcomes.START_FAILED, str(error))
            resolved = resolve(folder, handle.workspace)
            listing = await handle.list_files(resolved, max_entries)
            return Missing(resolved) if listing is None else Listed(resolved, listing)

    async def report(self) -> dict[str, JsonValue]:
        """Which backend is used and why (5.3)."""
        return (await self._selector.select()).report()

    # Core's housekeeping

    async def stop_idle(self, now_ms: float | None = None, emit: Emit = nobody) -> None:
        """Stops workspaces that have been idle long enough (6.5); None means the clock."""
        if self._closing:
            return
        now = self._now_ms() if now_ms is None else now_ms

        def idle(entry: _Entry) -> bool:
            return (
                entry.handle is not None and entry.active == 0 and now - entry.last_used_ms >= entry.idle_ms
            )

        async def stop(entry: _Entry) -> None:
            async with entry.turns.turn():
                if idle(entry):
                    await self._stop(entry, emit)

        async with asyncio.TaskGroup() as group:
            for entry in list(self._entries.values()):
                if idle(entry):
                    group.create_task(stop(entry))
        for record in self._records.all():
            if record.state != "stopped" and not self._is_live(record.key):
                await self._recording(self._records.put_stopped(record))

    def records(self) -> list[Record]:
        """All records, in the order in which they were first made."""
        return self._records.all()

    async def remove(self, key: str) -> None:
        """Deletes a workspace with its files and its record (6.6). Raises BackendError.

        The key must be of the tenant's form: it becomes a path.
        """
        entry = self._entries.get(key)
        if entry is None:
            # So that a call that comes meanwhile waits for the removal.
            entry = self._entries[key] = _Entry(key, "", None, 0)
        async with entry.turns.turn():
            entry.removed = True
            if self._entries.get(key) is entry:
                del self._entries[key]
            self._drop(entry)
            selection = await self._selector.select()
            if selection.backend is not None:
                await selection.backend.remove(key)
            await self._recording(self._records.delete(key))

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Deletes the workspace of a shared sandbox. Raises BackendError."""
        await self.remove(resource_key(self._tenant_id, sandbox_id))

    async def remove_all(self) -> None:
        """Deletes every workspace of the tenant, also those without a record. Raises BackendError."""
        selection = await self._selector.select()
        if selection.backend is not None:
            for key in await selection.backend.list(key_prefix(self._tenant_id)):
                await self.remove(key)
        for record in self._records.all():
            await self.remove(record.key)

    async def close(self) -> None:
        """Stops every workspace; nobody is told, records are written. Bounded by the caller."""
        self._closing = True
        selection = self._selector.made
        if selection is None or selection.backend is None:
            return

        async def stop(entry: _Entry) -> None:
            async with entry.turns.turn():
                if entry.handle is not None:
                    await self._stop(entry, nobody)

        async with asyncio.TaskGroup() as group:
            for entry in list(self._entries.values()):
                group.create_task(stop(entry))
        await selection.backend.close()

    # Inside

    @asynccontextmanager
    async def _turn(self, call: Call, limit_ms: float) -> AsyncIterator[_Turn | Outcome]:
        """Prepares (6.1) and queues (6.2) an operation; gives the outcome when it can't be done here."""
        key = workspace_key(self._tenant_id, call.session.owner_id, call.session.sandbox_id)
        spec = resolve_spec(call.spec, key)
        selection = await self._selector.select()
        refusal = _refusal(selection, spec)
        if refusal is not None or selection.backend is None:
            await call.begin(limit_ms)
            yield refusal or failed(outcomes.UNAVAILABLE, selection.reason)
            return
        while True:
            entry = self._entry(key, call.session, spec)
            async with entry.turns.turn(call.waiting):
                if entry.removed:
                    continue
                if call.signal.kind is not None:
                    raise OperationAborted(call.signal.kind)
                if self._closing:
                    raise ManagerClosing
                opening = 0 if entry.handle is not None else OPENING_LIMIT_S * 1000
                await call.begin(limit_ms + opening)
                entry.active += 1
                try:
                    yield _Turn(entry, selection.backend, spec)
                finally:
                    entry.active -= 1
                    entry.last_used_ms = self._now_ms()
                return

    def _is_live(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and (entry.handle is not None or entry.active > 0)

    def _entry(self, key: str, session: SessionRef, spec: BackendSpec) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(key, session.owner_id, session.sandbox_id, spec.idle_ms)
            self._entries[key] = entry
        return entry

    async def _open(self, turn: _Turn, call: Call) -> Handle:
        """The entry's handle, opened when there is none (6.3). Raises _StartFailed, BackendError."""
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
            raise _StartFailed(f"The workspace was not ready within {OPENING_LIMIT_S} s.") from None
        except BackendError as error:
            raise _StartFailed(str(error)) from error
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

    async def _start_failed(self, turn: _Turn, call: Call, error: str) -> None:
        try:
            record = await self._put(turn, call, "stopped")
        except BackendError as second:
            # The start's own failure is the one to tell; the next sweep mends the record.
            get_logger().warning("sandbox_record_failed", key=turn.entry.key, error=error_text(second))
            return
        await call.emit(_state(call, stopped_payload(turn.backend.name, error), record))

    async def _run(self, entry: _Entry, call: Call, handle: Handle, tool: str, input_: JsonValue) -> Outcome:
        began = time.monotonic()
        try:
            result = await run_tool(handle, tool, input_, call.signal)
        except BackendError as error:
            self._drop(entry)
            if call.signal.aborted or tool not in READ_TOOLS:
                raise
            return failed(outcomes.ERROR, str(error))
        except BaseException:
            self._drop(entry)
            raise
        duration_ms = round((time.monotonic() - began) * 1000)
        payload = exec_payload(tool, result.report, result.outcome, duration_ms)
        session = call.session
        await call.emit(SandboxEvent(session.owner_id, session.active_turn_id, EXEC, payload))
        return result.outcome

    async def _stop(self, entry: _Entry, emit: Emit) -> None:
        handle, entry.handle = entry.handle, None
        if handle is None:
            return
        selection = self._selector.made
        assert selection is not None
        assert selection.backend is not None
        backend = selection.backend.name
        try:
            await handle.stop()
        except BackendError as error:
            get_logger().warning("sandbox_stop_failed", key=entry.key, error=error_text(error))
        finally:
            handle.release()
        try:
            record = await self._recording(
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

    async def _put(self, turn: _Turn, call: Call, state: State) -> Record:
        return await self._recording(
            self._records.put(
                turn.entry.key,
                session_id=call.session.owner_id,
                sandbox_id=call.session.sandbox_id,
                backend=turn.backend.name,
                state=state,
                image=turn.spec.image,
            )
        )

    @staticmethod
    async def _recording(writing: Awaitable[_T]) -> _T:
        try:
            return await writing
        except OSError as error:
            raise BackendError(f"The workspace's record can't be written: {error.strerror}.") from error

    @staticmethod
    def _drop(entry: _Entry) -> None:
        handle, entry.handle = entry.handle, None
        if handle is not None:
            handle.release()


class _StartFailed(Exception):
    """The backend could not open a workspace."""


def _refusal(selection: Selection, spec: BackendSpec) -> Outcome | None:
    backend = selection.backend
    if backend is None:
        return failed(outcomes.UNAVAILABLE, f"No sandbox can be used here: {selection.reason}")
    unmet = backend.unmet(spec)
    if unmet is None:
        return None
    return failed(outcomes.UNAVAILABLE, f"The sandbox backend {backend.name} can't do this: {unmet}")


def _state(call: Call, payload: dict[str, JsonValue], record: Record) -> SandboxEvent:
    return SandboxEvent(call.session.owner_id, call.session.active_turn_id, STATE, payload, record)
