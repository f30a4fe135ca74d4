"""Core's `workspace.*` requests over gRPC (harness-api 4, sandbox-manager 10 and 11.2)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from whippletree.v1 import common_pb2, sandbox_manager_pb2

from gateway.executors.call_metadata import plain_metadata
from gateway.executors.contract import (
    AbortSignal,
    ExecutionFailed,
    SandboxEvent,
    WorkspaceCaller,
    WorkspaceFailed,
)
from gateway.executors.effect_result import failed_outcome
from gateway.executors.effects import SURROGATE_TEXT
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.run_sandbox import workspace_key
from gateway.executors.sandbox import (
    FULL_NAME,
    SERVICE,
    TOO_LARGE,
    Ending,
    FileBytes,
    SandboxCalls,
    claim_event,
    record_document,
)
from gateway.executors.status import CallFailed, Meaning
from gateway.executors.stream_call import StreamCall, StreamMethod
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import UnaryMethod, call_unary
from protocol.jsjson import JsonError, JsonValue, Parsed, dumps, loads

MAX_FILE_BYTES: Final = 48 * 1024 * 1024 - 64 * 1024
"""A larger file in base64 does not fit a frame of 64 MiB; it is refused instead of costing the connection."""

ARTIFACT_TOO_LARGE: Final = "artifact.too_large"
_REPORT: Final = UnaryMethod(
    f"/{FULL_NAME}/Report", sandbox_manager_pb2.ReportRequest, sandbox_manager_pb2.ReportReply
)
_REMOVE: Final = UnaryMethod(
    f"/{FULL_NAME}/Remove", sandbox_manager_pb2.RemoveRequest, sandbox_manager_pb2.RemoveReply
)
_SWEEP: Final = StreamMethod(
    f"/{FULL_NAME}/Sweep", sandbox_manager_pb2.SweepRequest, sandbox_manager_pb2.SweepReply
)


class GrpcWorkspaces:
    """Serves core's requests at the shards. Every method raises WorkspaceFailed; calls raise RunAborted."""

    def __init__(self, replicas: ReplicaSet, calls: SandboxCalls, timings: ExecutorTimings) -> None:
        self._replicas = replicas
        self._calls = calls
        self._timings = timings

    async def run(
        self, caller: WorkspaceCaller, spec: JsonValue, tool: str, input_: JsonValue, signal: AbortSignal
    ) -> Parsed:
        """A tool's outcome document."""
        operation = sandbox_manager_pb2.ToolOperation(tool=tool, input=common_pb2.Json(text=dumps(input_)))
        ending = await self._perform(caller, spec, signal, tool=operation)
        if not isinstance(ending, Parsed):
            raise _odd_answer()
        return ending

    async def read_bytes(
        self, caller: WorkspaceCaller, spec: JsonValue, path: str, max_bytes: int, signal: AbortSignal
    ) -> JsonValue:
        """{kind: "read", path, base64}, {kind: "missing", path}, or a failed outcome."""
        operation = sandbox_manager_pb2.ReadBytesOperation(path=_text(path), max_bytes=min(max_bytes, 2**62))
        ending = await self._perform(caller, spec, signal, read_bytes=operation)
        if isinstance(ending, FileBytes):
            # A megabyte takes a millisecond: off the loop once it would be felt.
            encoded = await asyncio.to_thread(base64.b64encode, ending.content)
            return {"kind": "read", "path": ending.path, "base64": encoded.decode("ascii")}
        return _missing_or_outcome(ending)

    async def list_files(
        self, caller: WorkspaceCaller, spec: JsonValue, dir_: str, max_entries: int, signal: AbortSignal
    ) -> JsonValue:
        """{kind: "listed", path, listing: {entries, truncated}}, {kind: "missing", path}, or a failed outcome."""
        operation = sandbox_manager_pb2.ListFilesOperation(
            dir=_text(dir_), max_entries=min(max_entries, 2**62)
        )
        ending = await self._perform(caller, spec, signal, list_files=operation)
        if isinstance(ending, sandbox_manager_pb2.FileListing):
            entries: list[JsonValue] = [{"path": entry.path, "size": entry.size} for entry in ending.entries]
            return {
                "kind": "listed",
                "path": ending.path,
                "listing": {"entries": entries, "truncated": ending.truncated},
            }
        return _missing_or_outcome(ending)

    async def report(self, tenant_id: str, preference: str) -> JsonValue:
        """The backend report: that of the first shard which has no backend, else the first one's."""
        request = sandbox_manager_pb2.ReportRequest(tenant=_tenant(tenant_id, preference))
        replies = await self._at_every_shard(lambda name: self._ask(name, _REPORT, request))
        reports: list[JsonValue] = []
        for reply in replies:
            try:
                reports.append(loads(reply.report.text))
            except JsonError:
                raise _odd_answer() from None
        lacking = (report for report in reports if isinstance(report, dict) and report.get("backend") is None)
        return next(lacking, reports[0])

    async def sweep(
        self,
        tenant_id: str,
        preference: str,
        now_ms: float | None,
        claim_event: Callable[[SandboxEvent], Awaitable[None]],
    ) -> Sequence[JsonValue]:
        """Stops idle workspaces at every shard, returns all records."""
        begin = sandbox_manager_pb2.SweepBegin(tenant=_tenant(tenant_id, preference), now_ms=now_ms)
        replies = await self._at_every_shard(lambda name: self._sweep_shard(name, begin, claim_event))
        return [record_document(record) for reply in replies for record in reply.records]

    async def remove(
        self, tenant_id: str, preference: str, all_: bool, keys: Sequence[str], sandbox_ids: Sequence[str]
    ) -> None:
        """Deletes workspaces: everything first, then keys in order, then sandboxes in order."""
        tenant = _tenant(tenant_id, preference)
        if all_:
            request = sandbox_manager_pb2.RemoveRequest(tenant=tenant, all=True)
            await self._at_every_shard(lambda name: self._ask(name, _REMOVE, request))
        for name, some in self._by_shard(keys, lambda key: key):
            await self._remove(name, sandbox_manager_pb2.RemoveRequest(tenant=tenant, keys=some))
        for name, some in self._by_shard(sandbox_ids, lambda id_: workspace_key(tenant_id, "", id_)):
            await self._remove(name, sandbox_manager_pb2.RemoveRequest(tenant=tenant, sandbox_ids=some))

    # Inside.

    async def _perform(
        self, caller: WorkspaceCaller, spec: JsonValue, signal: AbortSignal, **operation: Any
    ) -> Ending:
        try:
            key = workspace_key(caller.tenant_id, caller.owner_id, caller.sandbox_id)
            request = sandbox_manager_pb2.WorkspaceOperation(
                tenant=_tenant(caller.tenant_id, caller.preference),
                workspace=sandbox_manager_pb2.WorkspaceRef(
                    owner_id=caller.owner_id,
                    sandbox_id=caller.sandbox_id,
                    active_turn_id=caller.active_turn_id,
                ),
                spec=common_pb2.Json(text=dumps(spec)),
                **operation,
            )
        except UnicodeEncodeError:
            raise WorkspaceFailed("invalid", SURROGATE_TEXT) from None
        try:
            return await self._calls.perform(
                key,
                sandbox_manager_pb2.RunRequest(request=request),
                metadata=lambda replica: plain_metadata(replica, key),
                claim=caller.claim_event,
                signal=signal,
                max_file_bytes=MAX_FILE_BYTES,
            )
        except ExecutionFailed as error:
            raise WorkspaceFailed("internal", str(error)) from None
        except CallFailed as failure:
            if failure.meaning is Meaning.TOO_LARGE:
                code = ARTIFACT_TOO_LARGE if "read_bytes" in operation else TOO_LARGE
                return failed_outcome(failure, code)
            raise _workspace_failed(failure) from None

    def _by_shard(self, items: Sequence[str], key_of: Callable[[str], str]) -> list[tuple[str, list[str]]]:
        """Runs of items that belong to the same shard, in order."""
        groups: list[tuple[str, list[str]]] = []
        for item in items:
            try:
                name = self._replicas.shard_name(key_of(item))
            except UnicodeEncodeError:
                raise WorkspaceFailed("invalid", SURROGATE_TEXT) from None
            if groups and groups[-1][0] == name:
                groups[-1][1].append(item)
            else:
                groups.append((name, [item]))
        return groups

    async def _remove(self, name: str, request: sandbox_manager_pb2.RemoveRequest) -> None:
        try:
            reply = await self._ask(name, _REMOVE, request)
        except CallFailed as failure:
            raise _workspace_failed(failure) from None
        if reply.invalid_key:
            raise WorkspaceFailed("invalid", f"{dumps(reply.invalid_key)} is no workspace of this tenant.")

    async def _at_every_shard(self, ask: Callable[[str], Awaitable[Any]]) -> list[Any]:
        """All shards' answers in the configured order. One that fails fails all: a part is no answer."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_awaited(ask(name))) for name in self._replicas.shard_names]
        except* CallFailed as failures:
            raise _workspace_failed(_first(failures)) from None
        return [task.result() for task in tasks]

    async def _ask(self, name: str, method: UnaryMethod, request: Any) -> Any:
        """A call that starts nothing, or may run twice. Raises CallFailed."""
        signal = AbortSignal()

        def attempt(replica: Replica) -> Awaitable[Any]:
            return call_unary(
                method,
                replica,
                request,
                plain_metadata(replica, name),
                signal=signal,
                stops=lambda _: False,
                timings=self._timings,
                service=SERVICE,
                within_s=self._timings.workspace,
            )

        return await self._calls.at_shard(
            name,
            attempt,
            may_resend=lambda failure: failure.meaning in (Meaning.NOT_STARTED, Meaning.LOST),
            signal=signal,
        )

    async def _sweep_shard(
        self,
        name: str,
        begin: sandbox_manager_pb2.SweepBegin,
        claim: Callable[[SandboxEvent], Awaitable[None]],
    ) -> sandbox_manager_pb2.WorkspaceRecords:
        async def handle(
            call: StreamCall[sandbox_manager_pb2.WorkspaceRecords], reply: sandbox_manager_pb2.SweepReply
        ) -> sandbox_manager_pb2.WorkspaceRecords | None:
            if reply.WhichOneof("message") != "event":
                return reply.records
            await claim_event(claim, reply.event)
            await call.send(ack=sandbox_manager_pb2.EventAck(seq=reply.event.seq))
            return None

        signal = AbortSignal()

        async def attempt(replica: Replica) -> sandbox_manager_pb2.WorkspaceRecords:
            stream: StreamCall[sandbox_manager_pb2.WorkspaceRecords] = StreamCall(
                _SWEEP,
                replica,
                plain_metadata(replica, name),
                signal=signal,
                stops=lambda _: False,
                timings=self._timings,
                service=SERVICE,
                handle=handle,
                silence_s=self._timings.workspace,
            )
            return await stream.run(sandbox_manager_pb2.SweepRequest(begin=begin))

        return await self._calls.at_shard(
            name,
            attempt,
            may_resend=lambda failure: failure.meaning is Meaning.NOT_STARTED,
            signal=signal,
        )


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _first(group: BaseExceptionGroup[CallFailed]) -> CallFailed:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, CallFailed)
    return error


def _tenant(tenant_id: str, preference: str) -> sandbox_manager_pb2.TenantRef:
    return sandbox_manager_pb2.TenantRef(tenant_id=_text(tenant_id), preference=_text(preference))


def _text(text: str) -> str:
    """Raises WorkspaceFailed for a text that protobuf can't carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WorkspaceFailed("invalid", SURROGATE_TEXT) from None
    return text


def _missing_or_outcome(ending: Ending) -> JsonValue:
    if isinstance(ending, Parsed):
        return ending.value
    if isinstance(ending, sandbox_manager_pb2.MissingPath):
        return {"kind": "missing", "path": ending.path}
    raise _odd_answer()


def _odd_answer() -> WorkspaceFailed:
    return WorkspaceFailed("internal", "The sandbox-manager's answer does not fit the request.")


def _workspace_failed(failure: CallFailed) -> WorkspaceFailed:
    if failure.meaning is Meaning.INVALID:
        return WorkspaceFailed("invalid", failure.text)
    if failure.meaning in (Meaning.NOT_STARTED, Meaning.LOST, Meaning.REFUSED_US) and not failure.started:
        return WorkspaceFailed("unavailable", failure.text)
    return WorkspaceFailed("internal", failure.text)
