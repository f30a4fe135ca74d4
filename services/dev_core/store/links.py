"""Rows of links: agent effects of flows, and the linked turns that carry them out (see `schema`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias

import msgspec

from services.dev_core.store.transaction import Tx

LinkState: TypeAlias = Literal["queued", "running", "settled", "withdrawn"]


class Link(msgspec.Struct, frozen=True):
    """One link; the first three say whose effect it is."""

    session_id: str
    effect_id: str
    turn_id: str
    linked_id: str
    linked_turn_id: str | None
    state: LinkState


_COLUMNS: Final = "session_id, effect_id, turn_id, linked_id, linked_turn_id, state"
_LINK_COLUMNS: Final = tuple(f"l.{name}" for name in _COLUMNS.split(", "))


def insert(tx: Tx, link: Link) -> None:
    """A new link."""
    tx.run(
        f"INSERT INTO links ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (link.session_id, link.effect_id, link.turn_id, link.linked_id, link.linked_turn_id, link.state),
    )


def load(tx: Tx, session_id: str, effect_id: str) -> Link | None:
    """The link of an effect, or None."""
    row = tx.one(
        f"SELECT {_COLUMNS} FROM links WHERE session_id = ? AND effect_id = ?", (session_id, effect_id)
    )
    return None if row is None else Link(*row)


def of_turn(tx: Tx, linked_id: str, linked_turn_id: str | None) -> Link | None:
    """The link that a linked turn carries out, or None."""
    row = tx.one(
        f"SELECT {_COLUMNS} FROM links WHERE linked_id = ? AND state = 'running' AND linked_turn_id = ?",
        (linked_id, linked_turn_id),
    )
    return None if row is None else Link(*row)


def running(tx: Tx, session_id: str) -> list[Link]:
    """What is carried out for a session now, in the order it was asked for."""
    return _where(tx, "session_id = ? AND state = 'running'", session_id)


def open_of(tx: Tx, session_id: str) -> list[Link]:
    """What is carried out for a session now, or will be."""
    return _where(tx, "session_id = ? AND state IN ('queued', 'running')", session_id)


def ready(tx: Tx, session_id: str, limit: int, busy: Collection[str]) -> list[Link]:
    """What may begin for a session: the first that are queued and whose linked session is not `busy`."""
    if limit <= 0:
        return []
    names = ", ".join(_LINK_COLUMNS)
    statuses = sorted(busy)
    rows = tx.all(
        f"SELECT {names} FROM links l JOIN sessions s ON s.id = l.linked_id WHERE l.session_id = ? "
        f"AND l.state = 'queued' AND s.status NOT IN ({', '.join('?' * len(statuses))}) "
        "ORDER BY +l.number LIMIT ?",
        (session_id, *statuses, limit),
    )
    return [Link(*row) for row in rows]


def sessions_with_queued(tx: Tx) -> list[str]:
    """Every session for which something is queued."""
    return [row[0] for row in tx.all("SELECT DISTINCT session_id FROM links WHERE state = 'queued'")]


def count_running(tx: Tx, session_id: str) -> int:
    """How many linked turns run for a session."""
    row = tx.one("SELECT count(*) FROM links WHERE session_id = ? AND state = 'running'", (session_id,))
    assert row is not None
    return int(row[0])


def move(tx: Tx, link: Link, state: LinkState, linked_turn_id: str | None = None) -> None:
    """Moves a link; with a turn it is that turn's from now on."""
    tx.run(
        "UPDATE links SET state = ?, linked_turn_id = coalesce(?, linked_turn_id) "
        "WHERE session_id = ? AND effect_id = ?",
        (state, linked_turn_id, link.session_id, link.effect_id),
    )


def is_wanted(tx: Tx, linked_id: str) -> bool:
    """Whether a session runs a link, or is going to."""
    found = "SELECT 1 FROM links WHERE linked_id = ? AND state IN ('queued', 'running')"
    return tx.one(found, (linked_id,)) is not None


def _where(tx: Tx, condition: str, session_id: str) -> list[Link]:
    rows = tx.all(f"SELECT {_COLUMNS} FROM links WHERE {condition} ORDER BY +number", (session_id,))
    return [Link(*row) for row in rows]
