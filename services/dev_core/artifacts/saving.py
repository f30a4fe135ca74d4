"""`save_artifact`: what the tool's input asks for, and what becomes of it (sandbox-manager 11.3).

The core carries this tool out itself: it reads the file through the run's own connection, while the harness
waits for the answer to its `effect.intent`. Reading changes nothing, so a file that can't be read is a failed
outcome; only a connection that is lost meanwhile leaves the effect as it is.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from protocol import jsjson
from protocol.errors import HarnessApiError
from services.common.logs import error_text, get_logger
from services.dev_core.artifacts import records
from services.dev_core.artifacts.blobs import MAX_ARTIFACT_BYTES, Blob, Blobs, BlobTooLarge
from services.dev_core.artifacts.naming import (
    BYTES_TYPE,
    TEXT_TYPE,
    clean_name,
    is_media_type,
    name_of,
    type_of,
)
from services.dev_core.artifacts.records import UnknownArtifact
from services.dev_core.clock import now_ms
from services.dev_core.effects import outcome
from services.dev_core.effects.held import own_effect, turn_cancelled
from services.dev_core.harness.run import Run
from services.dev_core.harness.workspaces import request_on, session_reference
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import Tx

_MEMBERS: Final = ("path", "content", "name", "contentType", "artifactId")


class SaveFailed(Exception):
    """Why nothing was saved: a code and a text that the model reads."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message


@dataclass(frozen=True, slots=True)
class Wanted:
    """One call: either a path of the workspace or the content itself."""

    path: str | None
    content: str | None
    name: str
    content_type: str
    artifact_id: str | None


def read_input(value: Any) -> Wanted:
    """The tool's input. Raises SaveFailed `artifact.invalid`."""
    members = value if isinstance(value, dict) else {}
    for name in _MEMBERS:
        if members.get(name) is not None and not isinstance(members[name], str):
            raise SaveFailed("artifact.invalid", f"{name} is a text")
    path, content = members.get("path"), members.get("content")
    if (path is None) == (content is None) or path == "":
        raise SaveFailed(
            "artifact.invalid", "Give either path, a file of the workspace, or content, the text itself"
        )
    name = clean_name(members.get("name") or "") or (name_of(path) if path else "artifact.txt")
    given = members.get("contentType")
    if given and not is_media_type(given):
        raise SaveFailed("artifact.invalid", "contentType is a media type such as text/plain")
    content_type = given or type_of(name, BYTES_TYPE if content is None else TEXT_TYPE)
    return Wanted(path, content, name, content_type, members.get("artifactId") or None)


class ArtifactSaver:
    """Carries `save_artifact` out."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs

    async def save(self, run: Run, effect_id: str, value: Any) -> dict[str, Any]:
        """The answer to the effect's intent. Raises HarnessApiError, and StoreFailed of the database."""
        try:
            wanted = read_input(value)
            data = await self._bytes(run, wanted)
            text = await self._store_version(run, effect_id, wanted, data)
        except SaveFailed as failure:
            outcome_value = {"kind": "failed", "code": failure.code, "message": failure.message}
            text = await self._store.write(
                partial(
                    outcome.record_value,
                    run=run.held,
                    effect_id=effect_id,
                    value=jsjson.dumps(outcome_value),
                    failed=True,
                    cancelled=_cancelled(run),
                    now_ms=now_ms(),
                )
            )
        return {"status": "completed", "outcome": jsjson.RawJson(text)}

    async def _bytes(self, run: Run, wanted: Wanted) -> bytes:
        if wanted.content is not None:
            return wanted.content.encode("utf-8", "replace")
        assert wanted.path is not None
        if run.facts.sandbox is None:
            raise SaveFailed(
                "artifact.no_workspace", "This agent has no workspace to read a path from: give content"
            )
        return await read_file(run, wanted.path)

    async def _store_version(self, run: Run, effect_id: str, wanted: Wanted, data: bytes) -> str:
        async with self._blobs.lock:
            try:
                blob = await self._blobs.put(data)
            except BlobTooLarge:
                raise _too_large(len(data)) from None
            except OSError as error:
                get_logger().error("artifact_not_stored", error=error_text(error))
                raise SaveFailed("artifact.store_failed", "The core could not store the file") from None
            try:
                return await self._store.write(
                    partial(
                        _commit,
                        run=run,
                        effect_id=effect_id,
                        wanted=wanted,
                        blob=blob,
                        now_ms=now_ms(),
                    )
                )
            except UnknownArtifact:
                raise SaveFailed(
                    "artifact.not_found", f"This session has no artifact {wanted.artifact_id}"
                ) from None


def _commit(tx: Tx, run: Run, effect_id: str, wanted: Wanted, blob: Blob, now_ms: int) -> str:
    row = own_effect(tx, run.held, effect_id)
    if row.status == "completed" and row.outcome is not None:
        return row.outcome
    if not row.active:
        raise turn_cancelled(run.held)
    made = records.add(
        tx,
        run.session_id,
        blob,
        artifact_id=wanted.artifact_id,
        name=wanted.name,
        content_type=wanted.content_type,
        now_ms=now_ms,
        turn_id=run.held.turn_id,
    )
    return outcome.record_value(
        tx,
        run.held,
        effect_id,
        jsjson.dumps({"kind": "completed", "output": made.document()}),
        failed=False,
        cancelled=_cancelled(run),
        now_ms=now_ms,
    )


def _cancelled(run: Run) -> bool:
    return run.abort is not None and run.abort.kind == "cancel"


async def ask_workspace(run: Run, what: dict[str, Any]) -> Any:
    """A `workspace.read` of the run's workspace through its own connection: the bytes or the list of `what`.

    Raises SaveFailed with the harness's refusal, and HarnessApiError when the connection is lost.
    """
    assert run.facts.sandbox is not None
    params = {
        "session": session_reference(run.session_id, run.held.turn_id),
        "spec": jsjson.loads(run.facts.sandbox),
        **what,
    }
    try:
        return await request_on(run.connection, "workspace.read", params)
    except HarnessApiError as error:
        if run.connection.closed:
            raise
        raise SaveFailed("artifact.read_failed", error.message) from None


async def read_file(run: Run, path: str) -> bytes:
    """A file of the run's workspace.

    Raises SaveFailed with what a model should know, and HarnessApiError when the connection is lost.
    """
    try:
        result = await ask_workspace(run, {"bytes": {"path": path, "maxBytes": MAX_ARTIFACT_BYTES}})
    except SaveFailed as failure:
        raise SaveFailed(failure.code, f"{path} can't be read: {failure.message}") from None
    match result:
        case {"kind": "read", "base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                raise SaveFailed("artifact.read_failed", f"{path} came back garbled") from None
        case {"kind": "missing"}:
            raise SaveFailed("artifact.not_found", f"There is no file {path}")
        case {"kind": "failed", "code": str(code), "message": str(message)}:
            raise SaveFailed(code, message)
    raise SaveFailed("artifact.read_failed", f"{path} can't be read: the harness gave no file")


def _too_large(size: int) -> SaveFailed:
    return SaveFailed(
        "artifact.too_large", f"The content has {size} bytes; an artifact has at most {MAX_ARTIFACT_BYTES}"
    )
