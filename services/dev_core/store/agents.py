"""Rows of agents and of the manifests that agents and sessions share by hash."""

from __future__ import annotations

from dataclasses import dataclass

from services.dev_core.manifests import Engine
from services.dev_core.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as it stands now; sessions keep the manifest they were made with."""

    id: str
    manifest_hash: str
    actions_url: str | None
    created_ms: int
    updated_ms: int
    engine: Engine


def load(tx: Tx, agent_id: str) -> Agent | None:
    """The agent, or None."""
    row = tx.one(
        "SELECT id, manifest_hash, actions_url, created_ms, updated_ms, engine FROM agents WHERE id = ?",
        (agent_id,),
    )
    return None if row is None else Agent(*row)


def put(
    tx: Tx,
    agent_id: str,
    manifest_hash: str,
    manifest: str,
    *,
    engine: Engine,
    actions_url: str | None,
    now_ms: int,
) -> tuple[Agent, bool]:
    """Makes or replaces an agent; also tells whether it is new."""
    is_new = tx.one("SELECT 1 FROM agents WHERE id = ?", (agent_id,)) is None
    put_manifest(tx, manifest_hash, manifest)
    tx.run(
        "INSERT INTO agents (id, manifest_hash, actions_url, engine, created_ms, updated_ms) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET manifest_hash = excluded.manifest_hash, "
        "actions_url = excluded.actions_url, engine = excluded.engine, updated_ms = excluded.updated_ms",
        (agent_id, manifest_hash, actions_url, engine, now_ms, now_ms),
    )
    agent = load(tx, agent_id)
    assert agent is not None
    return agent, is_new


def listing(tx: Tx, *, limit: int, after: str) -> list[Agent]:
    """Agents by id, after an id."""
    rows = tx.all(
        "SELECT id, manifest_hash, actions_url, created_ms, updated_ms, engine FROM agents WHERE id > ? "
        "ORDER BY id LIMIT ?",
        (after, limit),
    )
    return [Agent(*row) for row in rows]


def put_manifest(tx: Tx, manifest_hash: str, text: str) -> None:
    """Keeps a manifest's text under its hash."""
    tx.run("INSERT OR IGNORE INTO manifests (hash, text) VALUES (?, ?)", (manifest_hash, text))


def manifest(tx: Tx, manifest_hash: str) -> str | None:
    """A manifest's text by its hash."""
    row = tx.one("SELECT text FROM manifests WHERE hash = ?", (manifest_hash,))
    return None if row is None else str(row[0])


def actions_url_of_session(tx: Tx, session_id: str) -> str | None:
    """Where the Actions of the session's agent are posted, as that agent stands now.

    The agent of a linked session may have none of its own: then they go where its workflow's go.
    """
    row = tx.one(
        "SELECT a.actions_url FROM sessions s JOIN agents a ON a.id = coalesce(s.endpoint_agent_id, s.agent_id) "
        "WHERE s.id = ?",
        (session_id,),
    )
    return None if row is None else row[0]
