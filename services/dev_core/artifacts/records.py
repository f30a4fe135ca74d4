"""Rows of artifacts and their versions. A version never changes; a new one gets the next number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from services.dev_core.artifacts.blobs import Blob
from services.dev_core.clock import iso_time, new_id
from services.dev_core.store import events
from services.dev_core.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class ArtifactVersion:
    """One version. `path` is where in the workspace a turn's end found it, for those that it exports."""

    artifact_id: str
    session_id: str
    version: int
    name: str
    content_type: str
    sha256: str
    size: int
    path: str | None
    created_ms: int

    def document(self) -> dict[str, Any]:
        """What people and models read of it."""
        found: dict[str, Any] = {
            "artifactId": self.artifact_id,
            "version": self.version,
            "name": self.name,
            "contentType": self.content_type,
            "size": self.size,
        }
        return found if self.path is None else {**found, "path": self.path}

    def listed(self) -> dict[str, Any]:
        """The document with what a model does not need."""
        return {**self.document(), "sha256": self.sha256, "createdAt": iso_time(self.created_ms)}


class UnknownArtifact(Exception):
    """The session has no artifact with that id."""


_COLUMNS: Final = (
    "a.id, a.session_id, v.version, v.name, v.content_type, v.sha256, v.size, a.path, v.created_ms"
)
_FROM: Final = "FROM artifacts a JOIN artifact_versions v ON v.artifact_id = a.id"


def add(
    tx: Tx,
    session_id: str,
    blob: Blob,
    *,
    artifact_id: str | None,
    name: str,
    content_type: str,
    now_ms: int,
    path: str | None = None,
    turn_id: str | None = None,
) -> ArtifactVersion:
    """A new version of an artifact, or the first of a new one, with its event. Raises UnknownArtifact."""
    if artifact_id is None:
        artifact_id, version = new_id("art"), 1
        tx.run(
            "INSERT INTO artifacts (id, session_id, path, created_ms) VALUES (?, ?, ?, ?)",
            (artifact_id, session_id, path, now_ms),
        )
    else:
        row = tx.one(
            "SELECT a.path, max(v.version) FROM artifacts a JOIN artifact_versions v ON v.artifact_id = a.id "
            "WHERE a.id = ? AND a.session_id = ? GROUP BY a.id",
            (artifact_id, session_id),
        )
        if row is None:
            raise UnknownArtifact
        path, version = row[0], row[1] + 1
    tx.run(
        "INSERT INTO artifact_versions (artifact_id, version, name, content_type, sha256, size, created_ms) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (artifact_id, version, name, content_type, blob.sha256, blob.size, now_ms),
    )
    made = ArtifactVersion(
        artifact_id, session_id, version, name, content_type, blob.sha256, blob.size, path, now_ms
    )
    events.append(tx, session_id, "artifact.saved", turn_id, made.document(), now_ms)
    return made


def load(
    tx: Tx, artifact_id: str, version: int | None, *, session_id: str | None = None
) -> ArtifactVersion | None:
    """One version, the newest without a number; None when there is none, or another session has it."""
    row = tx.one(
        f"SELECT {_COLUMNS} {_FROM} WHERE a.id = ?1 AND (?2 IS NULL OR v.version = ?2) "
        "AND (?3 IS NULL OR a.session_id = ?3) ORDER BY v.version DESC LIMIT 1",
        (artifact_id, version, session_id),
    )
    return None if row is None else ArtifactVersion(*row)


def at_path(tx: Tx, session_id: str, path: str) -> ArtifactVersion | None:
    """The newest version of what a turn's end found at that path."""
    row = tx.one(
        f"SELECT {_COLUMNS} {_FROM} WHERE a.session_id = ? AND a.path = ? ORDER BY v.version DESC LIMIT 1",
        (session_id, path),
    )
    return None if row is None else ArtifactVersion(*row)


def listing(tx: Tx, session_id: str, after: int, limit: int) -> list[tuple[int, ArtifactVersion]]:
    """The newest version of each of a session's artifacts, each with the number that `after` continues at."""
    rows = tx.all(
        f"SELECT a.number, {_COLUMNS} {_FROM} WHERE a.session_id = ? AND a.number > ? AND v.version = "
        "(SELECT max(version) FROM artifact_versions WHERE artifact_id = a.id) ORDER BY a.number LIMIT ?",
        (session_id, after, limit),
    )
    return [(row[0], ArtifactVersion(*row[1:])) for row in rows]


def drop_of_session(tx: Tx, session_id: str) -> list[str]:
    """Deletes a session's artifacts; the hashes that no other version names."""
    hashes = [
        row[0] for row in tx.all(f"SELECT DISTINCT v.sha256 {_FROM} WHERE a.session_id = ?", (session_id,))
    ]
    tx.run(
        "DELETE FROM artifact_versions WHERE artifact_id IN (SELECT id FROM artifacts WHERE session_id = ?)",
        (session_id,),
    )
    tx.run("DELETE FROM artifacts WHERE session_id = ?", (session_id,))
    return [
        sha256
        for sha256 in hashes
        if tx.one("SELECT 1 FROM artifact_versions WHERE sha256 = ? LIMIT 1", (sha256,)) is None
    ]
