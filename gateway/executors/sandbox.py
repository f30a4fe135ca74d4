"""Operations in workspaces over gRPC: which shard, the conversation, the claims of events (sandbox-manager 6 to 11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from whippletree.v1 import sandbox_manager_pb2

from gateway.engine.contract import AbortKind, EffectRequest
from gateway.executors.call_metadata import CallMetadata, run_metadata
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunContext, SandboxEvent
from gateway.executors.effect_result import aborted_error, failed_outcome, parsed_outcome
from gateway.executors.effects import SURROGATE_TEXT, fill_effect_ref
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.resend import Resends
from gateway.executors.run_sandbox import sandbox_for
from gateway.executors.status import RESENT, CallFailed, Meaning
from gateway.executors.stream_call import StreamCall, StreamMethod
from gateway.executors.timings import ExecutorTimings
from protocol.jsjson import JsonError, JsonValue, Parsed, dumps_bytes, loads
from services.common.json_text import set_json
from services.common.logs import get_logger

FULL_NAME: Final = "whippletree.v1.SandboxManager"
SERVICE: Final = "sandbox-manager"
TOO_LARGE: Final = "sandbox.error"
_RUN: Final = StreamMethod(f"/{FULL_NAME}/Run", sandbox_manager_pb2.RunRequest, sandbox_manager_pb2.RunReply)
T = TypeVar("T")

Claim = Callable[[SandboxEvent], Awaitable[None]]


@dataclass(slots=True)
class FileBytes:
    """A file that came in chunks."""

    path: str
    size: int
    content: bytearray


Ending = Parsed | FileBytes | sandbox_manager_pb2.FileListing | sandbox_manager_pb2.MissingPath
"""What an operation gives."""


class SandboxCalls:
    """Runs operations at the shard that has the workspace. No other shard ever takes its place."""

    def __init__(self, replicas: ReplicaSet, timings: ExecutorTimings) -> None:
        self._replicas = replicas
        self._timings = timings

    async def run_tool(
        self,
        spec: bytes,
        effect: EffectRequest,
        run: RunContext,
        signal: AbortSignal,
        rejoin: bool,
    ) -> Parsed:
        """A run's tool effect; `spec` is its sandbox's spec as JSON text. Raises RunAborted, ExecutionFailed."""
        document = effect.document
        first = sandbox_manager_pb2.RunRequest()
        operation = first.request
        try:
            place = sandbox_for(run)
            # In place: a message given to a constructor is copied.
            operation.tenant.tenant_id = run.tenant_id
            operation.tenant.preference = run.preference
            operation.workspace.owner_id = place.owner_id
            if place.sandbox_id is not None:
                operation.workspace.sandbox_id = place.sandbox_id
            operation.workspace.active_turn_id = run.turn_id
            set_json(operation.spec, spec)
            fill_effect_ref(operation.effect, effect, run)
            operation.tool.tool = str(document.get("toolName"))
            set_json(operation.tool.input, dumps_bytes(document.get("input"), plain=effect.plain))
            operation.rejoin = rejoin
        except UnicodeEncodeError:
            raise ExecutionFailed(SURROGATE_TEXT) from None
        try:
            ending = await self.perform(
                place.key,
                first,
                metadata=lambda replica: run_metadata(replica, run, place.key),
                claim=run.claim_event,
                signal=signal,
            )
        except CallFailed as failure:
            signal.raise_if_set()
            return failed_outcome(failure, TOO_LARGE)
        if not isinstance(ending, Parsed):
            raise ExecutionFailed("The sandbox-manager answered a tool with something else.")
        return ending

    async def perform(
        self,
        key: str,
        first: sandbox_manager_pb2.RunRequest,
        *,
        metadata: Callable[[Replica], CallMetadata],
        claim: Claim,
        signal: AbortSignal,
        max_file_bytes: int | None = None,
    ) -> Ending:
        """One operation, which `first` holds, sent again only while `start` was not.

        Raises CallFailed, RunAborted, ExecutionFailed (the manager raised). A file larger than
        `max_file_bytes` ends the call and raises CallFailed with TOO_LARGE.
        """
        signal.raise_if_set()

        async def attempt(replica: Replica) -> Ending:
            stream: StreamCall[Ending] = StreamCall(
                _RUN,
                replica,
                metadata(replica),
                signal=signal,
                stops=_every_kind,
                timings=self._timings,
                service=SERVICE,
                handle=_Conversation(claim, signal, max_file_bytes).handle,
            )
            return await stream.run(first)

        try:
            return await self.at_shard(
                self._replicas.shard_name(key),
                attempt,
                may_resend=lambda failure: not failure.started and failure.meaning in RESENT,
                signal=signal,
            )
        except CallFailed:
            signal.raise_if_set()
            raise

    async def at_shard(
        self,
        name: str,
        attempt: Callable[[Replica], Awaitable[T]],
        *,
        may_resend: Callable[[CallFailed], bool],
        signal: AbortSignal,
    ) -> T:
        """Attempts at the shard of a name, while it is there. Raises CallFailed, and what `attempt` raises."""

        def shard() -> Replica | None:
            replica = self._replicas.shard_called(name)
            return replica if replica is not None and replica.serving else None

        return await Resends(self._replicas, self._timings).run(
            attempt,
            choose=shard,
            missing=f"The sandbox-manager {name} is not there.",
            may_resend=may_resend,
            signal=signal,
        )


class _Conversation:
    """The replies of one operation."""

    def __init__(self, claim: Claim, signal: AbortSignal, max_file_bytes: int | None) -> None:
        self._claim = claim
        self._signal = signal
        self._max_file_bytes = max_file_bytes
        self._file: FileBytes | None = None

    async def handle(self, call: StreamCall[Ending], reply: sandbox_manager_pb2.RunReply) -> Ending | None:
        """Claims an event and acknowledges it, gathers a file, or gives the end."""
        match reply.WhichOneof("message"):
            case "event":
                await claim_event(self._claim, reply.event)
                await call.send(ack=sandbox_manager_pb2.EventAck(seq=reply.event.seq))
            case "file":
                self._begin_file(reply.file)
                return self._file if self._file is not None and self._file.size == 0 else None
            case "chunk":
                return self._add_chunk(reply.chunk)
            case "listing":
                return reply.listing
            case "missing":
                return reply.missing
            case "outcome":
                return parsed_outcome(reply.outcome.text)
            case "raised":
                raise ExecutionFailed(reply.raised.message)
            case "aborted":
                raise aborted_error(self._signal)
        return None

    def _begin_file(self, header: sandbox_manager_pb2.FileHeader) -> None:
        limit = self._max_file_bytes
        if limit is not None and header.size > limit:
            raise CallFailed(
                Meaning.TOO_LARGE, f"{header.path} has {header.size} bytes; at most {limit} fit an answer."
            )
        self._file = FileBytes(header.path, header.size, bytearray())

    def _add_chunk(self, chunk: bytes) -> FileBytes | None:
        file = self._file
        if file is None or len(file.content) + len(chunk) > file.size:
            raise CallFailed(Meaning.FAULT, "The sandbox-manager sent bytes that belong to no file.")
        file.content += chunk
        return file if len(file.content) == file.size else None


def _every_kind(kind: AbortKind) -> bool:
    """Every abort kills a command (sandbox-manager 11.1)."""
    return True


async def claim_event(claim: Claim, event: sandbox_manager_pb2.SandboxEvent) -> None:
    """Claims an event at core; one that can't be read is logged and dropped."""
    try:
        payload = loads(event.payload.text)
    except JsonError:
        get_logger().warning(
            "sandbox_event_dropped",
            sessionId=event.session_id,
            type=event.type,
            error="its payload is not JSON",
        )
        return
    await claim(
        SandboxEvent(
            session_id=event.session_id,
            turn_id=event.turn_id if event.HasField("turn_id") else None,
            type=event.type,
            payload=payload,
            record=record_document(event.record) if event.HasField("record") else None,
        )
    )


def record_document(record: sandbox_manager_pb2.WorkspaceRecord) -> dict[str, JsonValue]:
    """A record as core knows it (sandbox-manager 4)."""
    document: dict[str, JsonValue] = {"key": record.key, "sessionId": record.session_id}
    if record.HasField("sandbox_id"):
        document["sandboxId"] = record.sandbox_id
    return document | {
        "backend": record.backend,
        "image": record.image,
        "state": record.state,
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
    }
