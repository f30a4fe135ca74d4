"""Rows of effects and of the Actions behind some of them (harness-api 8.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from services.dev_core.store.transaction import Tx

EffectStatus: TypeAlias = Literal["invoking", "pending", "completed", "uncertain"]
Runner: TypeAlias = Literal["model", "mcp", "remote-mcp", "sandbox", "artifact", "action", "linked", "core"]
"""Who carries an effect out: the first four through the harness, `linked` a session of its own, `artifact` and
`core` the core itself, the latter at once. `remote-mcp` is a server behind a gate, which keeps its calls by their
effect ids."""

ActionState: TypeAlias = Literal["new", "sent", "accepted", "settled", "withdrawn"]


class Effect(msgspec.Struct, frozen=True):
    """One effect.

    `label` is JSON text, what every event of the effect says of it; `request` the intent's document;
    `outcome` that of {value, statePatch?}.
    """

    session_id: str
    effect_id: str
    turn_id: str
    segment: int
    kind: str
    call_id: str | None
    runner: Runner
    status: EffectStatus
    request_hash: str
    started_ms: int
    ended_ms: int | None
    attempts: int
    error: str | None
    label: str
    request: str
    outcome: str | None


_COLUMNS: Final = (
    "session_id, effect_id, turn_id, segment, kind, call_id, runner, status, request_hash, started_ms, "
    "ended_ms, attempts, error, label, request, outcome"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM effects WHERE session_id = ? AND effect_id = ?"


def load(tx: Tx, session_id: str, effect_id: str) -> Effect | None:
    """The effect, or None."""
    row = tx.one(_SELECT, (session_id, effect_id))
    return None if row is None else Effect(*row)


def insert(tx: Tx, effect: Effect) -> None:
    """A new row."""
    tx.run(
        f"INSERT INTO effects ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            effect.session_id,
            effect.effect_id,
            effect.turn_id,
            effect.segment,
            effect.kind,
            effect.call_id,
            effect.runner,
            effect.status,
            effect.request_hash,
            effect.started_ms,
            effect.ended_ms,
            effect.attempts,
            effect.error,
            effect.label,
            effect.request,
            effect.outcome,
        ),
    )


def complete(tx: Tx, session_id: str, effect_id: str, outcome: str, now_ms: int) -> None:
    """Records an outcome."""
    tx.run(
        "UPDATE effects SET status = 'completed', outcome = ?, error = NULL, ended_ms = ? "
        "WHERE session_id = ? AND effect_id = ?",
        (outcome, now_ms, session_id, effect_id),
    )


_COMPLETE_HELD: Final = (
    "UPDATE effects SET status = 'completed', outcome = ?, error = NULL, ended_ms = ? "
    "WHERE session_id = ? AND effect_id = ? AND turn_id = ? AND status = 'invoking' AND EXISTS "
    "(SELECT 1 FROM sessions WHERE id = ? AND epoch = ? AND lease_owner = ? AND turn_id = ?)"
)


def complete_held(
    tx: Tx,
    session_id: str,
    turn_id: str,
    effect_id: str,
    outcome: str,
    *,
    epoch: int,
    owner: str,
    now_ms: int,
) -> bool:
    """Records an outcome if the effect runs, its turn is under way and this owner has the session.

    False: something of that is not so, and nothing was written.
    """
    held = (outcome, now_ms, session_id, effect_id, turn_id, session_id, epoch, owner, turn_id)
    return tx.run(_COMPLETE_HELD, held) == 1


def make_uncertain(tx: Tx, session_id: str, effect_id: str, error: str, now_ms: int) -> None:
    """Nobody knows any more whether the effect ran; an error that is noted already stays."""
    tx.run(
        "UPDATE effects SET status = 'uncertain', error = coalesce(error, ?), ended_ms = ? "
        "WHERE session_id = ? AND effect_id = ?",
        (error, now_ms, session_id, effect_id),
    )


def count_attempt(tx: Tx, session_id: str, effect_id: str) -> None:
    """The harness was told once more to carry the effect out."""
    tx.run(
        "UPDATE effects SET attempts = attempts + 1 WHERE session_id = ? AND effect_id = ?",
        (session_id, effect_id),
    )


def invoking(tx: Tx, session_id: str) -> list[tuple[str, str, Runner]]:
    """Id, turn and runner of every effect that the harness was told to carry out."""
    return tx.all(
        "SELECT effect_id, turn_id, runner FROM effects WHERE session_id = ? AND status = 'invoking' "
        "ORDER BY +number",
        (session_id,),
    )


def completed_of_segment(tx: Tx, session_id: str, turn_id: str, segment: int) -> list[tuple[str, str, str]]:
    """Id, request hash and outcome of the segment's completed effects, in the order they were asked for."""
    prefix = f"{turn_id}:{segment}:"
    rows = tx.all(
        "SELECT number, effect_id, request_hash, outcome FROM effects "
        "WHERE session_id = ? AND effect_id >= ? AND effect_id < ? AND status = 'completed'",
        (session_id, prefix, f"{prefix[:-1]};"),
    )
    return [(row[1], row[2], row[3]) for row in sorted(rows)]


def statuses(tx: Tx, session_id: str, effect_ids: list[str]) -> dict[str, EffectStatus]:
    """The status of each of the effects that exist."""
    found: dict[str, EffectStatus] = {}
    for effect_id in effect_ids:
        row = tx.one(
            "SELECT status FROM effects WHERE session_id = ? AND effect_id = ?", (session_id, effect_id)
        )
        if row is not None:
            found[effect_id] = row[0]
    return found


def of_session(
    tx: Tx, session_id: str, *, turn_id: str | None, after: int, limit: int
) -> list[tuple[int, Effect]]:
    """A session's effects in the order they were asked for, each with its number, after a number."""
    rows = tx.all(
        # The plus signs keep SQLite from walking everybody's effects in the order of their numbers.
        f"SELECT number, {_COLUMNS} FROM effects WHERE session_id = ?1 AND +number > ?2 "
        "AND (?3 IS NULL OR turn_id = ?3) ORDER BY +number LIMIT ?4",
        (session_id, after, turn_id, limit),
    )
    return [(row[0], Effect(*row[1:])) for row in rows]


_BRIEF: Final = _COLUMNS.replace("request, outcome", "'', substr(outcome, 1, 26)")


def brief_of_session(
    tx: Tx, session_id: str, *, turn_id: str | None, after: int, limit: int
) -> list[tuple[int, Effect]]:
    """`of_session` without the documents: no request, and of the outcome only how it begins."""
    rows = tx.all(
        f"SELECT number, {_BRIEF} FROM effects WHERE session_id = ?1 AND +number > ?2 "
        "AND (?3 IS NULL OR turn_id = ?3) ORDER BY +number LIMIT ?4",
        (session_id, after, turn_id, limit),
    )
    return [(row[0], Effect(*row[1:])) for row in rows]


def call_ids(tx: Tx, session_id: str, turn_id: str) -> set[str]:
    """The tool calls of a turn that were effects."""
    rows = tx.all(
        "SELECT call_id FROM effects WHERE session_id = ? AND effect_id >= ? AND effect_id < ? "
        "AND call_id IS NOT NULL",
        (session_id, f"{turn_id}:", f"{turn_id};"),
    )
    return {row[0] for row in rows}


# Actions


@dataclass(frozen=True, slots=True)
class Action:
    """A request to an agent's Action endpoint."""

    session_id: str
    effect_id: str
    url: str
    state: ActionState
    attempts: int
    """How often it was posted."""


def insert_action(tx: Tx, session_id: str, effect_id: str, url: str, now_ms: int) -> None:
    """An Action that is to be posted."""
    tx.run(
        "INSERT INTO actions (session_id, effect_id, url, state, created_ms) VALUES (?, ?, ?, 'new', ?)",
        (session_id, effect_id, url, now_ms),
    )


def action(tx: Tx, session_id: str, effect_id: str) -> Action | None:
    """The Action of an effect, or None."""
    row = tx.one(
        "SELECT session_id, effect_id, url, state, attempts FROM actions WHERE session_id = ? AND effect_id = ?",
        (session_id, effect_id),
    )
    return None if row is None else Action(*row)


def set_action(
    tx: Tx, session_id: str, effect_id: str, state: ActionState, sent_ms: int | None = None
) -> None:
    """Moves an Action; with `sent_ms` it is posted once more."""
    tx.run(
        "UPDATE actions SET state = ?1, sent_ms = coalesce(?2, sent_ms), attempts = attempts + (?2 IS NOT NULL) "
        "WHERE session_id = ?3 AND effect_id = ?4",
        (state, sent_ms, session_id, effect_id),
    )


def withdraw_actions(tx: Tx, session_id: str, turn_id: str | None) -> None:
    """Actions of a turn that were not posted yet never will be."""
    tx.run(
        "UPDATE actions SET state = 'withdrawn' WHERE state = 'new' AND session_id = ? "
        "AND effect_id >= ? AND effect_id < ?",
        (session_id, f"{turn_id}:", f"{turn_id};"),
    )


def open_actions(tx: Tx, state: ActionState) -> list[Action]:
    """Every Action in that state (`new` or `sent`)."""
    rows: list[Any] = tx.all(
        "SELECT session_id, effect_id, url, state, attempts FROM actions WHERE state = ? AND state IN ('new', 'sent')",
        (state,),
    )
    return [Action(*row) for row in rows]
