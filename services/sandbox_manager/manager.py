"""The manager of workspaces (sandbox-manager 6): who may work when, what is recorded and what core is told.

One per process and tenant. It keeps no timers: core drives idle stops and removals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from protocol.jsjson import JsonValue
from services.common.late import Late
from services.sandbox_manager import outcomes
from services.sandbox_manager.compute import (
    OPENING_LIMIT_S,
    Compute,
    Entry,
    StartFailed,
    Turn,
    let_go,
    recording,
)
from services.sandbox_manager.contract import Backend, BackendError, FileTooLarge, Handle
from services.sandbox_manager.events import EXEC, Emit, SandboxEvent, exec_payload
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
from services.sandbox_manager.records import Record, RecordStore
from services.sandbox_manager.selection import Probes, Selection, Selector
from services.sandbox_manager.specs import BackendSpec, resolve_spec
from services.sandbox_manager.tools import HELPER_TIMEOUT_MS, READ_TOOLS, run_tool, tool_limit_ms

_T = TypeVar("_T")


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
        self._compute = Compute(records)
        self._now_ms = now_ms
        self._entries: dict[str, Entry] = {}
        self._closing = False

    # Operations

    async def run(self, call: Call, tool: str, input_: JsonValue | Late[JsonValue]) -> Outcome:
        """Runs one of the six tools (6.4). Raises OperationAborted, ManagerClosing, BackendError.

        A late input is asked for when `begin` has returned; a command's must not be late.

        What it raises after `begin` returned leaves the effect uncertain.
        """
        limit_ms = tool_limit_ms(tool, None if isinstance(input_, Late) else input_)
        async with self._turn(call, limit_ms) as turn:
            if not isinstance(turn, Turn):
                return turn
            try:
                handle = await self._compute.open(turn, call)
            except StartFailed as error:
                await self._compute.start_failed(turn, call, str(error))
                return failed(outcomes.START_FAILED, str(error))
            known = input_.value if isinstance(input_, Late) else input_
            return await self._run(turn.entry, call, handle, tool, known)

    async def read_bytes(self, call: Call, path: str, max_bytes: int) -> BytesRead | Missing | Outcome:
        """A file whole (10). Raises OperationAborted, ManagerClosing, BackendError."""
        async with self._turn(call, HELPER_TIMEOUT_MS) as turn:
            if not isinstance(turn, Turn):
                return turn
            try:
                handle = await self._compute.open(turn, call)
            except StartFailed as error:
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
            if not isinstance(turn, Turn):
                return turn
            if turn.entry.handle is None and not self._records.existed(turn.entry.key):
                return Missing(folder)
            try:
                handle = await self._compute.open(turn, call)
            except StartFailed as error:
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

        def idle(entry: Entry) -> bool:
            return (
                entry.handle is not None and entry.active == 0 and now - entry.last_used_ms >= entry.idle_ms
            )

        async def stop(entry: Entry) -> None:
            async with entry.turns.turn():
                if idle(entry):
                    await self._stop(entry, emit)

        async with asyncio.TaskGroup() as group:
            for entry in list(self._entries.values()):
                if idle(entry):
                    group.create_task(stop(entry))
        for record in self._records.all():
            if record.state != "stopped" and not self._is_live(record.key):
                await recording(self._records.put_stopped(record))

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
            entry = self._entries[key] = Entry(key, "", None, 0)
        async with entry.turns.turn():
            entry.removed = True
            if self._entries.get(key) is entry:
                del self._entries[key]
            let_go(entry)
            selection = await self._selector.select()
            if selection.backend is not None:
                await selection.backend.remove(key)
            await recording(self._records.delete(key))

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

        async def stop(entry: Entry) -> None:
            async with entry.turns.turn():
                if entry.handle is not None:
                    await self._stop(entry, nobody)

        async with asyncio.TaskGroup() as group:
            for entry in list(self._entries.values()):
                group.create_task(stop(entry))
        await selection.backend.close()

    # Inside

    @asynccontextmanager
    async def _turn(self, call: Call, limit_ms: float) -> AsyncIterator[Turn | Outcome]:
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
                    yield Turn(entry, selection.backend, spec)
                finally:
                    entry.active -= 1
                    entry.last_used_ms = self._now_ms()
                return

    def _is_live(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and (entry.handle is not None or entry.active > 0)

    def _entry(self, key: str, session: SessionRef, spec: BackendSpec) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = Entry(key, session.owner_id, session.sandbox_id, spec.idle_ms)
            self._entries[key] = entry
        return entry

    async def _stop(self, entry: Entry, emit: Emit) -> None:
        selection = self._selector.made
        assert selection is not None
        assert selection.backend is not None
        await self._compute.stop(entry, selection.backend.name, emit)

    async def _run(self, entry: Entry, call: Call, handle: Handle, tool: str, input_: JsonValue) -> Outcome:
        began = time.monotonic()
        try:
            result = await run_tool(handle, tool, input_, call.signal)
        except BackendError as error:
            let_go(entry)
            if call.signal.aborted or tool not in READ_TOOLS:
                raise
            return failed(outcomes.ERROR, str(error))
        except BaseException:
            let_go(entry)
            raise
        duration_ms = round((time.monotonic() - began) * 1000)
        payload = exec_payload(tool, result.report, result.outcome, duration_ms)
        session = call.session
        await call.emit(SandboxEvent(session.owner_id, session.active_turn_id, EXEC, payload))
        return result.outcome


def _refusal(selection: Selection, spec: BackendSpec) -> Outcome | None:
    backend = selection.backend
    if backend is None:
        return failed(outcomes.UNAVAILABLE, f"No sandbox can be used here: {selection.reason}")
    unmet = backend.unmet(spec)
    if unmet is None:
        return None
    return failed(outcomes.UNAVAILABLE, f"The sandbox backend {backend.name} can't do this: {unmet}")
