"""Serves core's `workspace.*` requests, beside everything that is asked of core (harness-api 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET

from gateway.connection import Connection
from gateway.engine.contract import Abort, AbortKind
from gateway.executors.contract import (
    AbortSignal,
    RunAborted,
    SandboxEvent,
    WorkspaceCaller,
    WorkspaceFailed,
    Workspaces,
)
from gateway.harness_api.events import RequestArrived
from gateway.runs.claims import claim_event
from gateway.runs.host import Identity
from gateway.tasks import Tasks
from protocol.errors import HarnessApiError, to_harness_api_error
from protocol.jsjson import JsonValue
from protocol.methods import (
    CORE_METHODS,
    WorkspaceBytes,
    WorkspaceCall,
    WorkspaceList,
    WorkspaceRecord,
    WorkspaceRemoveParams,
    WorkspaceSession,
    WorkspaceSweepParams,
)
from services.common.logs import error_text, get_logger

_TOOLS_BY_METHOD: Final = {
    "workspace.exec": frozenset({"bash"}),
    "workspace.write": frozenset({"write", "edit"}),
    "workspace.read": frozenset({"read", "grep", "glob"}),
}

_FAULT: Final = "The workspace request failed"
_GONE: Final = "The Harness API connection closed"


@dataclass(frozen=True, slots=True)
class _Result:
    document: JsonValue
    plain: bool = False


class WorkspaceRequests:
    """The requests of one connection that are being served.

    `identity` says for whom, once a `hello` of the process was answered. Work starts at once and answers
    go out as they come, in any order.
    """

    def __init__(
        self,
        connection: Connection,
        workspaces: Workspaces | None,
        identity: Callable[[], Identity | None],
        tasks: Tasks,
    ) -> None:
        self._connection = connection
        self._workspaces = workspaces
        self._identity = identity
        self._tasks = tasks
        self._signals: dict[int, AbortSignal] = {}

    def arrived(self, request: RequestArrived) -> None:
        """Starts to serve a request, or refuses it."""
        identity = self._identity()
        if request.method not in CORE_METHODS or self._workspaces is None:
            error = HarnessApiError("invalid", f"unknown request {request.method}")
            self._connection.refuse(request.request_id, error)
        elif identity is None:
            error = HarnessApiError("unavailable", "no hello was answered yet")
            self._connection.refuse(request.request_id, error)
        else:
            signal = AbortSignal()
            self._signals[request.request_id] = signal
            server = _Server(self._connection, self._workspaces, identity, signal)
            self._tasks.start(self._serve(request, server))

    def given_up(self, request_id: int, error: HarnessApiError) -> None:
        """Stops the work of a request: core wants no answer, or can't get one."""
        signal = self._signals.get(request_id)
        if signal is None:
            return
        if self._connection.closed:
            signal.set(Abort(AbortKind.SHUTDOWN, _GONE))
        else:
            signal.set(Abort(AbortKind.CANCEL, error.message))

    async def _serve(self, request: RequestArrived, server: _Server) -> None:
        try:
            result = await server.serve(request)
        except RunAborted as aborted:
            self._connection.refuse(request.request_id, HarnessApiError("unavailable", str(aborted)))
        except (WorkspaceFailed, HarnessApiError) as failure:
            self._connection.refuse(request.request_id, to_harness_api_error(failure))
        except Exception as error:  # noqa: BLE001  (a fault of ours in one request is that request's)
            get_logger().error("harness_workspace_failed", method=request.method, error=error_text(error))
            self._connection.refuse(request.request_id, HarnessApiError("internal", _FAULT))
        else:
            self._connection.respond(request.request_id, result.document, plain=result.plain)
        finally:
            self._signals.pop(request.request_id, None)


class _Server:
    """Serves one request."""

    def __init__(
        self, connection: Connection, workspaces: Workspaces, identity: Identity, signal: AbortSignal
    ) -> None:
        self._connection = connection
        self._workspaces = workspaces
        self._identity = identity
        self._signal = signal

    async def serve(self, request: RequestArrived) -> _Result:
        """The result. Raises WorkspaceFailed, RunAborted, HarnessApiError."""
        match request.params:
            case WorkspaceCall() as call:
                return await self._run_tool(request.method, call)
            case WorkspaceBytes() as read:
                caller, file = self._caller(read.session), read.bytes
                return _Result(
                    await self._workspaces.read_bytes(
                        caller, read.spec, file.path, file.max_bytes, self._signal
                    )
                )
            case WorkspaceList() as listing:
                caller, folder = self._caller(listing.session), listing.list
                return _Result(
                    await self._workspaces.list_files(
                        caller, listing.spec, folder.dir, folder.max_entries, self._signal
                    )
                )
            case WorkspaceSweepParams() as sweep:
                now_ms = None if sweep.now is UNSET else float(sweep.now)
                records = await self._workspaces.sweep(*self._tenant, now_ms, self._claim)
                return _Result({"workspaces": [record for record in records if _is_record(record)]})
            case WorkspaceRemoveParams() as removal:
                await self._remove(removal)
                return _Result({})
            case _:
                return _Result(await self._workspaces.report(*self._tenant))

    @property
    def _tenant(self) -> tuple[str, str]:
        return self._identity.tenant_id, self._identity.preference

    async def _run_tool(self, method: str, call: WorkspaceCall) -> _Result:
        if call.tool not in _TOOLS_BY_METHOD[method]:
            raise HarnessApiError("invalid", f"{method} does not run the tool {call.tool}")
        outcome = await self._workspaces.run(
            self._caller(call.session), call.spec, call.tool, call.input, self._signal
        )
        return _Result(outcome.value, outcome.plain)

    async def _remove(self, removal: WorkspaceRemoveParams) -> None:
        """All first, then keys, then sandboxes; what stands before a foreign key stays removed."""
        keys: Sequence[str] = () if removal.keys is UNSET else removal.keys
        sandbox_ids: Sequence[str] = () if removal.sandbox_ids is UNSET else removal.sandbox_ids
        prefix = f"nylorun-{self._identity.tenant_id}-"
        foreign = next((index for index, key in enumerate(keys) if not key.startswith(prefix)), None)
        if foreign is None:
            await self._workspaces.remove(*self._tenant, removal.all is True, keys, sandbox_ids)
            return
        if removal.all is True or foreign:
            await self._workspaces.remove(*self._tenant, removal.all is True, keys[:foreign], ())
        raise HarnessApiError("invalid", "a key is not one of this tenant's workspaces")

    def _caller(self, session: WorkspaceSession) -> WorkspaceCaller:
        return WorkspaceCaller(
            tenant_id=self._identity.tenant_id,
            preference=self._identity.preference,
            owner_id=session.owner_id,
            sandbox_id=None if session.sandbox_id is UNSET else session.sandbox_id,
            active_turn_id=session.active_turn_id,
            claim_event=self._claim,
        )

    async def _claim(self, event: SandboxEvent) -> None:
        await claim_event(self._connection, event, None)


def _is_record(record: JsonValue) -> bool:
    """Whether core would take the record; one it would refuse is logged and left out."""
    try:
        msgspec.convert(record, WorkspaceRecord)
    except msgspec.ValidationError as error:
        get_logger().warning("harness_workspace_record_dropped", error=str(error))
        return False
    return True
