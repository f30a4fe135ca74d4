"""Rows of sessions, their documents and their turns."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from services.dev_core.manifests import Engine
from services.dev_core.store.transaction import Tx

Status: TypeAlias = Literal[
    "idle", "runnable", "running", "waiting", "paused", "uncertain", "completed", "failed", "cancelled"
]
"""The eight of harness-api 8.1, and `idle` for a session that had no message yet."""

Document: TypeAlias = Literal[
    "info", "input", "state", "turn_state", "waits", "pending", "mcp_snapshot", "mcp_diagnostics"
]

OPEN_STATUSES: Final[frozenset[str]] = frozenset({"runnable", "running", "waiting", "paused", "uncertain"})
"""A turn is under way."""


class Session(msgspec.Struct, frozen=True):
    """A session's hot row. `turn_id` is None while no turn is under way.

    `parent_id`: the session whose turns it carries out effects for; `turn_manifest_hash`: what the turn under
    way runs with instead of the session's manifest.
    """

    id: str
    agent_id: str
    manifest_hash: str
    status: Status
    epoch: int
    lease_owner: str | None
    turn_id: str | None
    segment: int
    cursor: int
    length: int
    turn_cursor: int | None
    turn_length: int | None
    created_ms: int
    updated_ms: int
    engine: Engine = "agent"
    parent_id: str | None = None
    turn_manifest_hash: str | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Cursor and length of the transcript that the next segment starts from."""
        if self.turn_cursor is None or self.turn_length is None:
            return self.cursor, self.length
        return self.turn_cursor, self.turn_length


_COLUMNS: Final = (
    "id, agent_id, manifest_hash, status, epoch, lease_owner, turn_id, segment, cursor, "
    "length, turn_cursor, turn_length, created_ms, updated_ms, engine, parent_id, turn_manifest_hash"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM sessions WHERE id = ?"


def load(tx: Tx, session_id: str) -> Session | None:
    """The session, or None."""
    row = tx.one(_SELECT, (session_id,))
    return None if row is None else Session(*row)


class Parent(msgspec.Struct, frozen=True):
    """What a linked session is made for: see the tables."""

    id: str
    nesting: int
    endpoint_agent_id: str | None


def create(
    tx: Tx,
    session_id: str,
    agent_id: str,
    manifest_hash: str,
    *,
    engine: Engine,
    info: str | None,
    now_ms: int,
    parent: Parent | None = None,
) -> Session:
    """A new session, pinned to the manifest; with a parent a linked one."""
    above = (None, 0, None) if parent is None else (parent.id, parent.nesting, parent.endpoint_agent_id)
    tx.run(
        "INSERT INTO sessions (id, agent_id, manifest_hash, status, engine, created_ms, updated_ms, "
        "parent_id, nesting, endpoint_agent_id) VALUES (?, ?, ?, 'idle', ?, ?, ?, ?, ?, ?)",
        (session_id, agent_id, manifest_hash, engine, now_ms, now_ms, *above),
    )
    if info is not None:
        put_document(tx, session_id, "info", info)
    session = load(tx, session_id)
    assert session is not None
    return session


def as_parent(tx: Tx, session_id: str) -> Parent:
    """What sessions linked to this one are made for."""
    row = tx.one(
        "SELECT nesting + 1, coalesce(endpoint_agent_id, agent_id) FROM sessions WHERE id = ?", (session_id,)
    )
    assert row is not None
    return Parent(session_id, *row)


def linked_to(tx: Tx, session_id: str) -> list[str]:
    """The sessions linked to this one."""
    rows = tx.all("SELECT id FROM sessions WHERE parent_id = ? ORDER BY number", (session_id,))
    return [row[0] for row in rows]


def listing(
    tx: Tx, *, limit: int, before: int | None, agent_id: str | None, parent_id: str | None
) -> list[tuple[int, Session]]:
    """The newest sessions first, each with its number; `before` continues after that number.

    Linked sessions are found by their parent alone.
    """
    rows = tx.all(
        f"SELECT number, {_COLUMNS} FROM sessions "
        "WHERE (?1 IS NULL OR number < ?1) AND (?2 IS NULL OR agent_id = ?2) AND parent_id IS ?4 "
        "ORDER BY number DESC LIMIT ?3",
        (before, agent_id, limit, parent_id),
    )
    return [(row[0], Session(*row[1:])) for row in rows]


def set_status(tx: Tx, session_id: str, status: Status, now_ms: int) -> None:
    """Moves a session whose turn stays under way."""
    tx.run("UPDATE sessions SET status = ?, updated_ms = ? WHERE id = ?", (status, now_ms, session_id))


def release_lease(tx: Tx, session_id: str) -> None:
    """Nobody owns the session any more."""
    tx.run("UPDATE sessions SET lease_owner = NULL, lease_until_ms = NULL WHERE id = ?", (session_id,))


def end_turn(
    tx: Tx,
    session: Session,
    status: Status,
    result: str | None,
    now_ms: int,
    *,
    position: tuple[int, int] | None = None,
) -> None:
    """Ends the turn that is under way; `result` is the payload of its last event.

    Only a completed turn keeps what its segments recorded, up to `position` (cursor and length); after any
    other end the session stands where it stood before the turn.
    """
    cursor, length = position if position is not None else (session.cursor, session.length)
    tx.run(
        "UPDATE sessions SET status = ?, turn_id = NULL, segment = 0, cursor = ?, length = ?, "
        "turn_cursor = NULL, turn_length = NULL, turn_manifest_hash = NULL, updated_ms = ? WHERE id = ?",
        (status, cursor, length, now_ms, session.id),
    )
    tx.run(
        "DELETE FROM documents WHERE session_id = ? AND name IN ('turn_state', 'input', 'waits', 'pending')",
        (session.id,),
    )
    tx.run(
        "UPDATE turns SET status = ?, result = ?, ended_ms = ? WHERE session_id = ? AND turn_id = ?",
        (status, result, now_ms, session.id, session.turn_id),
    )


def put_document(tx: Tx, session_id: str, name: Document, text: str) -> None:
    """Writes one document."""
    tx.run(
        "INSERT INTO documents (session_id, name, text) VALUES (?, ?, ?) "
        "ON CONFLICT (session_id, name) DO UPDATE SET text = excluded.text",
        (session_id, name, text),
    )


def drop_document(tx: Tx, session_id: str, name: Document) -> None:
    """Deletes one document."""
    tx.run("DELETE FROM documents WHERE session_id = ? AND name = ?", (session_id, name))


def document(tx: Tx, session_id: str, name: Document) -> str | None:
    """One document."""
    row = tx.one("SELECT text FROM documents WHERE session_id = ? AND name = ?", (session_id, name))
    return None if row is None else str(row[0])


def documents(tx: Tx, session_id: str) -> dict[str, str]:
    """All of a session's documents by name."""
    return dict(tx.all("SELECT name, text FROM documents WHERE session_id = ?", (session_id,)))


# Turns


def start_turn(tx: Tx, session_id: str, turn_id: str, now_ms: int) -> None:
    """A new turn's row."""
    tx.run(
        "INSERT INTO turns (session_id, turn_id, status, started_ms) VALUES (?, ?, 'running', ?)",
        (session_id, turn_id, now_ms),
    )


def set_turn(tx: Tx, session_id: str, turn_id: str | None, status: str) -> None:
    """How a turn that is under way stands."""
    tx.run("UPDATE turns SET status = ? WHERE session_id = ? AND turn_id = ?", (status, session_id, turn_id))


def last_turn(tx: Tx, session_id: str) -> tuple[str, str, int, int | None, str | None] | None:
    """Id, status, start, end and result of the newest turn."""
    return tx.one(
        "SELECT turn_id, status, started_ms, ended_ms, result FROM turns WHERE session_id = ? "
        "ORDER BY rowid DESC LIMIT 1",
        (session_id,),
    )
