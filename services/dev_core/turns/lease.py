"""The session lease: taken for an offer, extended, given back, and taken over when it lapsed (harness-api 8.2)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from protocol import jsjson
from services.dev_core.flows.telling import tell_parent
from services.dev_core.store import effects, events, sessions
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Tx

LAPSED_ERROR: Final = "The harness that ran this effect went away before it reported an outcome"


class Taken(msgspec.Struct, frozen=True):
    """A lease that was taken, and everything a run starts from. Texts are JSON."""

    session: Session
    owner: str
    epoch: int
    turn_id: str
    segment: int
    cursor: int
    input: str
    state: str | None
    info: str | None
    mcp_snapshot: str | None
    outcomes: tuple[tuple[str, str, str], ...]


def take(tx: Tx, session_id: str, *, owner: str, run_id: str, until_ms: int, now_ms: int) -> Taken | None:
    """Takes the lease of a session that has something to run; None when it has not, or another owns it."""
    session = sessions.load(tx, session_id)
    if session is None or session.status != "runnable" or session.lease_owner is not None:
        return None
    assert session.turn_id is not None
    documents = sessions.documents(tx, session_id)
    epoch = session.epoch + 1
    tx.run(
        "UPDATE sessions SET epoch = ?, status = 'running', lease_owner = ?, lease_until_ms = ?, "
        "updated_ms = ? WHERE id = ?",
        (epoch, owner, until_ms, now_ms, session_id),
    )
    if "waits" in documents:
        sessions.drop_document(tx, session_id, "waits")
    outcomes = effects.completed_of_segment(tx, session_id, session.turn_id, session.segment)
    events.append(
        tx,
        session_id,
        "run.started",
        session.turn_id,
        {"runId": run_id, "epoch": epoch, "segment": session.segment, "replayed": len(outcomes)},
        now_ms,
    )
    return Taken(
        session=session,
        owner=owner,
        epoch=epoch,
        turn_id=session.turn_id,
        segment=session.segment,
        cursor=session.position[0],
        input=documents["input"],
        state=documents.get("turn_state", documents.get("state")),
        info=documents.get("info"),
        mcp_snapshot=documents.get("mcp_snapshot"),
        outcomes=tuple(outcomes),
    )


def extend(tx: Tx, session_id: str, epoch: int, owner: str, until_ms: int) -> bool:
    """Renews a lease; False when it belongs to somebody else by now."""
    changed = tx.run(
        "UPDATE sessions SET lease_until_ms = ? WHERE id = ? AND epoch = ? AND lease_owner = ?",
        (until_ms, session_id, epoch, owner),
    )
    return changed == 1


def give_back(tx: Tx, session_id: str, epoch: int, owner: str, now_ms: int) -> bool:
    """Releases the session with nothing settled; True when its turn is to be offered again."""
    session = sessions.load(tx, session_id)
    if session is None or session.epoch != epoch or session.lease_owner != owner:
        return False
    sessions.release_lease(tx, session_id)
    if session.status == "running":
        sessions.set_status(tx, session_id, "runnable", now_ms)
    return session.status in ("running", "runnable")


def take_over(
    tx: Tx,
    session_id: str,
    epoch: int,
    *,
    model_recovers: bool,
    now_ms: int,
) -> bool:
    """Ends a lease that lapsed without a release; True when the session is to be offered again.

    Every effect the harness was carrying out becomes uncertain, except those that a later run can join. One
    of the turn that is under way makes the session uncertain. The epoch moves, so that whatever the old
    owner still writes is refused. Nothing happens when the epoch is another already.
    """
    session = sessions.load(tx, session_id)
    if session is None or session.epoch != epoch or session.lease_owner is None:
        return False
    tx.run(
        "UPDATE sessions SET epoch = epoch + 1, lease_owner = NULL, lease_until_ms = NULL WHERE id = ?",
        (session_id,),
    )
    lost = mark_invoking_uncertain(
        tx,
        session,
        LAPSED_ERROR,
        now_ms,
        kept=frozenset({"remote-mcp", "model"}) if model_recovers else frozenset({"remote-mcp"}),
    )
    if session.status == "running":
        events.append(tx, session_id, "run.lapsed", session.turn_id, {"epoch": epoch}, now_ms)
        if lost:
            become_uncertain(tx, session, lost, now_ms)
            return False
        sessions.set_status(tx, session_id, "runnable", now_ms)
        return True
    return session.status == "runnable"


def mark_invoking_uncertain(
    tx: Tx,
    session: Session,
    error: str,
    now_ms: int,
    *,
    kept: frozenset[str] = frozenset(),
) -> list[str]:
    """Makes effects that were being carried out uncertain; the ids of those of the session's turn.

    Each of these is an event. Effects of the runners that are `kept` stay as they are.
    """
    lost: list[str] = []
    for effect_id, turn_id, runner in effects.invoking(tx, session.id):
        if runner in kept:
            continue
        effects.make_uncertain(tx, session.id, effect_id, error, now_ms)
        if turn_id == session.turn_id:
            payload = {"effectId": effect_id, "message": error}
            events.append(tx, session.id, "effect.uncertain", turn_id, payload, now_ms)
            lost.append(effect_id)
    return lost


def become_uncertain(tx: Tx, session: Session, effect_ids: list[str], now_ms: int) -> None:
    """The turn can't go on by itself: a person has to end it."""
    sessions.set_status(tx, session.id, "uncertain", now_ms)
    sessions.put_document(tx, session.id, "waits", jsjson.dumps({"effectIds": effect_ids}))
    sessions.set_turn(tx, session.id, session.turn_id, "uncertain")
    events.append(tx, session.id, "turn.uncertain", session.turn_id, {"effectIds": effect_ids}, now_ms)
    tell_parent(tx, session, "agent.uncertain", now_ms)


def wake(tx: Tx, session: Session, now_ms: int) -> bool:
    """One of the session's effects has its outcome now: True when the session is to be offered again.

    Not when a run holds it, nor while another of the effects it waits for is uncertain.
    """
    if session.status not in ("waiting", "uncertain"):
        return False
    if session.status == "uncertain":
        waits: Any = jsjson.loads(sessions.document(tx, session.id, "waits") or '{"effectIds":[]}')
        if "uncertain" in effects.statuses(tx, session.id, waits["effectIds"]).values():
            return False
    sessions.set_status(tx, session.id, "runnable", now_ms)
    sessions.set_turn(tx, session.id, session.turn_id, "running")
    return True


def leased(tx: Tx) -> list[tuple[str, int, int]]:
    """Id, epoch and end of the lease of every session that somebody owns."""
    return tx.all(
        "SELECT id, epoch, lease_until_ms FROM sessions WHERE lease_owner IS NOT NULL ORDER BY lease_until_ms"
    )


def runnable(tx: Tx) -> list[str]:
    """Every session that waits to be offered, the one that has waited longest first."""
    rows = tx.all(
        "SELECT id FROM sessions WHERE status = 'runnable' AND lease_owner IS NULL ORDER BY updated_ms, number"
    )
    return [row[0] for row in rows]
