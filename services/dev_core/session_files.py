"""What people do with a session's files: its artifacts, its workspace, and its deletion.

Every method raises Problem, and StoreFailed of the database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.methods import MethodInvalid
from services.common.logs import error_text, get_logger
from services.dev_core.artifacts import records
from services.dev_core.artifacts.blobs import MAX_ARTIFACT_BYTES, Blob, Blobs, BlobTooLarge
from services.dev_core.artifacts.records import ArtifactVersion, UnknownArtifact
from services.dev_core.clock import now_ms
from services.dev_core.effects.held import storable
from services.dev_core.harness.workspaces import Workspaces, session_reference
from services.dev_core.manifests import facts_of
from services.dev_core.problems import Problem, no_session, turn_is_open
from services.dev_core.store import agents, links, sessions
from services.dev_core.store.database import Store
from services.dev_core.store.sessions import OPEN_STATUSES
from services.dev_core.store.transaction import Tx
from services.dev_core.sweeper import remove_due

WORKSPACE_S: Final = 660.0
"""Of one request to a workspace: the longest command takes 600 s."""
REMOVE_S: Final = 30.0


class SessionFiles:
    """Artifacts and workspaces of sessions."""

    def __init__(self, store: Store, blobs: Blobs, workspaces: Workspaces) -> None:
        self._store = store
        self._blobs = blobs
        self._workspaces = workspaces

    # Artifacts

    async def add(
        self,
        session_id: str,
        chunks: AsyncIterator[bytes],
        *,
        artifact_id: str | None,
        name: str,
        content_type: str,
    ) -> ArtifactVersion:
        """Keeps a file that a person gave."""
        await self._store.read(partial(_check_session, session_id=storable(session_id)))
        try:
            async with self._blobs.receiving(chunks) as received, self._blobs.lock:
                return await self._store.write(
                    partial(
                        _add,
                        session_id=storable(session_id),
                        blob=await self._blobs.keep(received),
                        artifact_id=None if artifact_id is None else storable(artifact_id),
                        name=name,
                        content_type=content_type,
                        now_ms=now_ms(),
                    )
                )
        except BlobTooLarge:
            raise Problem("too_large", f"An artifact has at most {MAX_ARTIFACT_BYTES} bytes.") from None
        except ConnectionError:
            raise
        except OSError as error:
            get_logger().error("artifact_not_stored", error=error_text(error))
            raise Problem("unavailable", "The core could not store the file; its log says why.") from None

    async def artifacts(self, session_id: str, after: int, limit: int) -> list[tuple[int, ArtifactVersion]]:
        """The newest version of each artifact of a session."""
        return await self._store.read(
            partial(_listing, session_id=storable(session_id), after=after, limit=limit)
        )

    async def artifact(
        self, session_id: str | None, artifact_id: str, version: int | None
    ) -> tuple[ArtifactVersion, Path]:
        """One version, the newest without a number, and the file with its bytes."""
        found = await self._store.read(
            partial(
                records.load,
                artifact_id=storable(artifact_id),
                version=version,
                session_id=None if session_id is None else storable(session_id),
            )
        )
        if found is None:
            raise Problem(
                "not_found",
                f"There is no such version of an artifact {artifact_id!r}: GET "
                "/v1/sessions/{id}/artifacts lists them.",
            )
        return found, self._blobs.path(found.sha256)

    # Workspaces

    async def call(self, session_id: str, method: str, call: dict[str, Any]) -> Any:
        """Runs one request in the session's workspace; its answer is the tool's outcome."""
        spec, turn_id = await self._store.read(partial(_workspace, session_id=storable(session_id)))
        params = {
            "session": session_reference(session_id, turn_id),
            "spec": jsjson.loads(spec),
            **call,
        }
        try:
            async with asyncio.timeout(WORKSPACE_S):
                return await self._workspaces.request(method, params)
        except MethodInvalid as error:
            raise Problem("invalid", f"The workspace takes no such request: {error}.") from None
        except TimeoutError:
            raise Problem("unavailable", "The harness did not answer in time.") from None
        except HarnessApiError as error:
            text = f"The workspace did not take the request: {error.message}."
            raise Problem("invalid" if error.code == "invalid" else "unavailable", text) from None

    # Deletion

    async def delete(self, session_id: str) -> None:
        """Deletes a session that has no turn under way, with its log, artifacts and workspace.

        The workspace goes when a harness that has workspaces is connected, at once or later.
        """
        async with self._blobs.lock:
            hashes = await self._store.write(
                partial(_delete, session_id=storable(session_id), now_ms=now_ms())
            )
            await self._blobs.drop(hashes)
        with contextlib.suppress(HarnessApiError, TimeoutError):
            async with asyncio.timeout(REMOVE_S):
                await remove_due(self._store, self._workspaces)


def _check_session(tx: Tx, session_id: str) -> None:
    if sessions.load(tx, session_id) is None:
        raise no_session(session_id)


def _add(tx: Tx, session_id: str, blob: Blob, *, artifact_id: str | None, **given: Any) -> ArtifactVersion:
    _check_session(tx, session_id)
    try:
        return records.add(tx, session_id, blob, artifact_id=artifact_id, **given)
    except UnknownArtifact:
        raise Problem(
            "not_found",
            f"Session {session_id} has no artifact {artifact_id!r}: leave artifactId out to make a new one.",
        ) from None


def _listing(tx: Tx, session_id: str, after: int, limit: int) -> list[tuple[int, ArtifactVersion]]:
    _check_session(tx, session_id)
    return records.listing(tx, session_id, after, limit)


def _workspace(tx: Tx, session_id: str) -> tuple[str, str | None]:
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    manifest = agents.manifest(tx, session.manifest_hash)
    assert manifest is not None
    spec = facts_of(session.manifest_hash, manifest).sandbox
    if spec is None:
        raise Problem(
            "no_workspace",
            f"The agent of session {session_id} has no capability with a sandbox, so there is no workspace.",
        )
    return spec, session.turn_id


def _delete(tx: Tx, session_id: str, now_ms: int) -> list[str]:
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    if session.status in OPEN_STATUSES:
        raise turn_is_open(session_id, session.status)
    if links.is_wanted(tx, session_id):
        raise Problem(
            "turn_waiting",
            f"The workflow session {session.parent_id} is about to use session {session_id}: end its turn first "
            f"with POST /v1/sessions/{session.parent_id}/cancel.",
        )
    hashes = [hash_ for linked in sessions.linked_to(tx, session_id) for hash_ in _delete(tx, linked, now_ms)]
    tx.run(
        "INSERT OR IGNORE INTO removals (key, created_ms) SELECT key, ? FROM workspaces WHERE session_id = ?",
        (now_ms, session_id),
    )
    hashes += records.drop_of_session(tx, session_id)
    for table in ("workspaces", "actions", "effects", "links", "events", "turns", "documents"):
        tx.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
    tx.run("DELETE FROM sessions WHERE id = ?", (session_id,))
    tx.touch(session_id, at_once=False)
    return hashes
