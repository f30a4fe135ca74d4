"""Between the proto's messages and the manager's own values. Nothing here waits or decides."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from whippletree.v1 import common_pb2, sandbox_manager_pb2

from protocol.jsjson import JsonError, JsonValue, dumps_bytes, loads
from services.common.calls import WorkKey, fingerprint_of
from services.common.errors import invalid
from services.common.json_text import set_json
from services.common.late import Late
from services.sandbox_manager.events import SandboxEvent
from services.sandbox_manager.keys import tenant_problem
from services.sandbox_manager.operations import BytesRead, Listed, Missing, SessionRef
from services.sandbox_manager.outcomes import Outcome
from services.sandbox_manager.records import Record
from services.sandbox_manager.signals import CANCEL, DEADLINE, OWNERSHIP_LOST, SHUTDOWN
from services.sandbox_manager.tools import TOOLS

Reply = sandbox_manager_pb2.RunReply

CHUNK_BYTES: Final = 1024 * 1024
_MAX_ID: Final = 512
_KINDS: Final = {
    common_pb2.ABORT_KIND_CANCEL: CANCEL,
    common_pb2.ABORT_KIND_DEADLINE: DEADLINE,
    common_pb2.ABORT_KIND_OWNERSHIP_LOST: OWNERSHIP_LOST,
}


def abort_name(kind: int) -> str:
    """The kind of an abort as signals have it; what isn't known is a shutdown."""
    return _KINDS.get(kind, SHUTDOWN)  # type: ignore[call-overload,no-any-return]


def abort_kind(name: str) -> int:
    """The other way."""
    numbers = {text: number for number, text in _KINDS.items()}
    return numbers.get(name, common_pb2.ABORT_KIND_SHUTDOWN)


def check_tenant(tenant: sandbox_manager_pb2.TenantRef) -> None:
    """Refuses a request whose tenant can't have workspaces. Raises Refused."""
    problem = _tenant_problem(tenant.tenant_id)
    if problem is not None:
        raise invalid(problem)


@lru_cache(maxsize=8)
def _tenant_problem(tenant_id: str) -> str | None:
    """A process has one tenant, which every request names."""
    return tenant_problem(tenant_id) or ("The tenant id is too long." if len(tenant_id) > _MAX_ID else None)


def check_operation(operation: sandbox_manager_pb2.WorkspaceOperation) -> None:
    """Refuses an operation that is not valid. Raises Refused."""
    check_tenant(operation.tenant)
    workspace = operation.workspace
    _check_id("workspace.owner_id", workspace.owner_id)
    if workspace.HasField("sandbox_id"):
        _check_id("workspace.sandbox_id", workspace.sandbox_id)
    if operation.HasField("effect"):
        _check_id("effect.session_id", operation.effect.session_id)
        _check_id("effect.effect_id", operation.effect.effect_id)
        if operation.effect.tenant_id != operation.tenant.tenant_id:
            raise invalid("effect.tenant_id is not the tenant of the request.")
    match operation.WhichOneof("operation"):
        case "tool":
            if operation.tool.tool not in TOOLS:
                raise invalid(f"tool must be one of {', '.join(TOOLS)}.")
        case "read_bytes":
            if operation.read_bytes.max_bytes < 0:
                raise invalid("read_bytes.max_bytes must not be negative.")
        case "list_files":
            if operation.list_files.max_entries < 0:
                raise invalid("list_files.max_entries must not be negative.")
        case _:
            raise invalid("operation is missing.")


def work_key(operation: sandbox_manager_pb2.WorkspaceOperation) -> WorkKey | None:
    """Under what a tool effect is joined and kept; None for what core asks for."""
    if not operation.HasField("effect") or operation.WhichOneof("operation") != "tool":
        return None
    effect = operation.effect
    return WorkKey(effect.tenant_id, effect.session_id, effect.effect_id)


LATE_BYTES: Final = 8192
"""Of a tool's input; a longer one is read while the word that the tool may start is on its way."""


def late_input(operation: sandbox_manager_pb2.WorkspaceOperation) -> JsonValue | Late[JsonValue]:
    """A tool's input. Raises Refused; a long one only when it is asked for.

    A command's is never late: it holds the limit that its caller is told before.
    """
    tool = operation.tool
    if tool.tool == "bash" or tool.input.ByteSize() <= LATE_BYTES:
        return document("tool.input", tool.input)
    return Late(lambda: document("tool.input", tool.input))


def fingerprint(operation: sandbox_manager_pb2.WorkspaceOperation) -> int | Late[int]:
    """All that makes a tool call what it is; who leads the run at the moment is no part of it."""
    if operation.tool.input.ByteSize() <= LATE_BYTES:
        return _fingerprint(operation)
    return Late(lambda: _fingerprint(operation))


def _fingerprint(operation: sandbox_manager_pb2.WorkspaceOperation) -> int:
    workspace, tool = operation.workspace, operation.tool
    sandbox_id = workspace.sandbox_id if workspace.HasField("sandbox_id") else None
    return fingerprint_of(workspace.owner_id, sandbox_id, operation.spec.text, tool.tool, tool.input.text)


def session_of(workspace: sandbox_manager_pb2.WorkspaceRef) -> SessionRef:
    """Whose workspace an operation is for."""
    return SessionRef(
        owner_id=workspace.owner_id,
        sandbox_id=workspace.sandbox_id if workspace.HasField("sandbox_id") else None,
        active_turn_id=workspace.active_turn_id if workspace.HasField("active_turn_id") else None,
    )


def document(name: str, json: common_pb2.Json) -> JsonValue:
    """A document of a request; none at all counts as {}. Raises Refused."""
    if not json.text:
        return {}
    try:
        return loads(json.text)
    except JsonError:
        raise invalid(f"{name} is not a JSON document.") from None


def outcome_reply(outcome: Outcome) -> Reply:
    """The end of an operation that has an outcome."""
    reply = Reply()
    set_json(reply.outcome, _written(outcome))
    return reply


def event_reply(seq: int, event: SandboxEvent) -> Reply:
    """An event under its number, as a stream of `Run` sends it."""
    reply = Reply()
    _fill_event(reply.event, seq, event)
    return reply


def event_message(seq: int, event: SandboxEvent) -> sandbox_manager_pb2.SandboxEvent:
    """The same as a message of its own."""
    message = sandbox_manager_pb2.SandboxEvent()
    _fill_event(message, seq, event)
    return message


def _fill_event(message: sandbox_manager_pb2.SandboxEvent, seq: int, event: SandboxEvent) -> None:
    # In place: a message given to a constructor is copied.
    message.seq = seq
    message.session_id = event.session_id
    if event.turn_id is not None:
        message.turn_id = event.turn_id
    message.type = event.type
    set_json(message.payload, _written(dict(event.payload)))
    if event.record is not None:
        message.record.CopyFrom(record_message(event.record))


def _written(document: dict[str, JsonValue]) -> bytes:
    """Our own outcomes and payloads hold texts, whole numbers and flags, under names of ours."""
    return dumps_bytes(document, plain=True)


def record_message(record: Record) -> sandbox_manager_pb2.WorkspaceRecord:
    """A record."""
    return sandbox_manager_pb2.WorkspaceRecord(
        key=record.key,
        session_id=record.session_id,
        sandbox_id=record.sandbox_id,
        backend=record.backend,
        image=record.image,
        state=record.state,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


def found_reply(found: Listed | Missing | Outcome) -> Reply:
    """The end of a listing, or of a file that isn't there."""
    if isinstance(found, Missing):
        return Reply(missing=sandbox_manager_pb2.MissingPath(path=found.path))
    if isinstance(found, Listed):
        entries = [
            sandbox_manager_pb2.FileEntry(path=entry.path, size=entry.size) for entry in found.listing.entries
        ]
        return Reply(
            listing=sandbox_manager_pb2.FileListing(
                path=found.path, entries=entries, truncated=found.listing.truncated
            )
        )
    return outcome_reply(found)


def file_replies(file: BytesRead) -> Iterator[Reply]:
    """A file: its size, then its bytes."""
    yield Reply(file=sandbox_manager_pb2.FileHeader(path=file.path, size=len(file.data)))
    for at in range(0, len(file.data), CHUNK_BYTES):
        yield Reply(chunk=file.data[at : at + CHUNK_BYTES])


def _check_id(name: str, value: str) -> None:
    if not 1 <= len(value) <= _MAX_ID:
        raise invalid(f"{name} must have 1 to {_MAX_ID} characters.")
