"""Actions in the database: what an agent's endpoint was asked, and what its answer commits (harness-api 8.5).

An Action is `new`, then `sent` (committed before the request leaves), then `accepted` when its outcome
comes later, and `settled`. It is posted from `new` alone, so at most once in its life: one that a start of
the core finds `sent` is uncertain. A hook that the endpoint refuses is uncertain too, since a failed
outcome would read as an empty result and let everything pass.

The functions of flows (`fn`, `verify`) may be called again: one whose answer was lost is `new` once more and
posted with the same key, a few times, and fails then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from msgspec import ValidationError, convert

from protocol import jsjson
from protocol.jsjson import RawJson
from protocol.methods import Outcome
from services.dev_core.effects.held import storable
from services.dev_core.effects.outcome import append_completed
from services.dev_core.problems import Problem, no_session
from services.dev_core.store import effects, events, sessions
from services.dev_core.store.effects import Effect
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.lease import become_uncertain, wake

LOST_ERROR: Final = "The core stopped after it had sent the Action and before the answer arrived"
REJECTED: Final = "endpoint.rejected"
FUNCTION_FAILED: Final = "fn.failed"
REPEATABLE: Final = frozenset({"fn", "verify"})
REPEATS: Final = 3
"""How often a function is posted again after its first answer was lost."""


@dataclass(frozen=True, slots=True)
class Order:
    """An Action that is to be posted now: `request` is the effect's document as JSON text."""

    session_id: str
    effect_id: str
    kind: str
    url: str
    request: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """The endpoint answered with an outcome (JSON text)."""

    outcome: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome comes later."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The endpoint refused the Action: it did not run."""

    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody knows whether the Action ran."""

    message: str


Delivery: TypeAlias = Delivered | Accepted | Rejected | Unknown


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a delivery changed. `outcome` is for the run that holds the session; `offer`: it can go on.

    `repeat`: the Action is to be posted again, for the time of that number.
    """

    result: Literal["completed", "repeated", "conflict", "accepted", "uncertain", "over", "again"]
    outcome: str | None = None
    offer: bool = False
    repeat: int = 0


def read_outcome(value: Any) -> str:
    """An outcome's JSON text from a parsed `{value, statePatch?}`. Raises Problem `invalid`."""
    try:
        convert(value, Outcome)
    except (ValidationError, UnicodeEncodeError):
        raise Problem("invalid", "An outcome is {value, statePatch?} with an object as statePatch.") from None
    return jsjson.dumps(value)


def mark_sent(tx: Tx, session_id: str, effect_id: str, now_ms: int) -> Order | None:
    """Commits that the Action is about to be posted; None when it must not be (any more)."""
    action = effects.action(tx, session_id, effect_id)
    row = effects.load(tx, session_id, effect_id)
    session = sessions.load(tx, session_id)
    if action is None or action.state != "new" or row is None or session is None:
        return None
    if row.status != "pending" or session.turn_id != row.turn_id:
        effects.set_action(tx, session_id, effect_id, "withdrawn")
        return None
    effects.set_action(tx, session_id, effect_id, "sent", now_ms)
    if action.attempts:
        effects.count_attempt(tx, session_id, effect_id)
    return Order(session_id, effect_id, row.kind, action.url, row.request)


def deliver(tx: Tx, order: Order, delivery: Delivery, now_ms: int) -> Resolved:
    """Commits the endpoint's answer to a posted Action.

    The outcome may have come through the outcome endpoint meanwhile: the first one stays.
    """
    row, session = _load(tx, order.session_id, order.effect_id)
    match delivery:
        case Accepted():
            action = effects.action(tx, order.session_id, order.effect_id)
            if action is not None and action.state == "sent":
                effects.set_action(tx, order.session_id, order.effect_id, "accepted")
            return Resolved("accepted")
        case Delivered(outcome):
            return _complete(tx, session, row, outcome, now_ms)
        case Rejected(message) if order.kind != "hook":
            failed = {"kind": "failed", "code": REJECTED, "message": message}
            return _complete(tx, session, row, jsjson.dumps({"value": failed}), now_ms)
        case Rejected(message) | Unknown(message):
            return _lose(tx, session, row, storable(message), now_ms)


def receive_outcome(tx: Tx, session_id: str, effect_id: str, outcome: str, now_ms: int) -> Resolved:
    """Commits an outcome that the endpoint brought by itself. Raises Problem.

    An Action that became uncertain is settled by it as well: whoever ran it knows.
    """
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    row = effects.load(tx, session_id, effect_id)
    if row is None or row.runner != "action":
        raise Problem("not_found", f"Session {session_id} has no Action {effect_id!r}.")
    resolved = _complete(tx, session, row, outcome, now_ms)
    if resolved.result == "conflict":
        raise Problem("already_settled", f"The Action {effect_id} has another outcome already.")
    if resolved.result == "over":
        # Raised without a write: an outcome that comes too late changes nothing.
        raise Problem("turn_over", f"The turn of {effect_id} is over: its outcome is not needed any more.")
    return resolved


def lose_sent(tx: Tx, now_ms: int) -> list[tuple[str, str]]:
    """At a start: every Action that was sent and not answered is uncertain, or new again. Returns those that
    are new."""
    for action in effects.open_actions(tx, "sent"):
        row, session = _load(tx, action.session_id, action.effect_id)
        resolved = _lose(tx, session, row, LOST_ERROR, now_ms)
        if resolved.offer:
            tx.move(session.id, "runnable")
    return [(action.session_id, action.effect_id) for action in effects.open_actions(tx, "new")]


def _load(tx: Tx, session_id: str, effect_id: str) -> tuple[Effect, Session]:
    row = effects.load(tx, session_id, effect_id)
    session = sessions.load(tx, session_id)
    assert row is not None
    assert session is not None
    return row, session


def _complete(tx: Tx, session: Session, row: Effect, outcome: str, now_ms: int) -> Resolved:
    if row.status == "completed":
        same = row.outcome == outcome
        return Resolved("repeated" if same else "conflict", row.outcome)
    if session.turn_id != row.turn_id:
        effects.set_action(tx, session.id, row.effect_id, "settled")
        return Resolved("over")
    effects.complete(tx, session.id, row.effect_id, outcome, now_ms)
    effects.set_action(tx, session.id, row.effect_id, "settled")
    append_completed(tx, row, now_ms)
    return Resolved("completed", outcome, wake(tx, session, now_ms))


def _lose(tx: Tx, session: Session, row: Effect, message: str, now_ms: int) -> Resolved:
    if row.kind in REPEATABLE and row.status == "pending" and session.turn_id == row.turn_id:
        return _lose_repeatable(tx, session, row, message, now_ms)
    effects.set_action(tx, session.id, row.effect_id, "settled")
    if row.status != "pending":
        return Resolved("repeated", row.outcome)
    effects.make_uncertain(tx, session.id, row.effect_id, message, now_ms)
    if session.turn_id != row.turn_id:
        return Resolved("over")
    payload = {"effectId": row.effect_id, "message": message}
    events.append(tx, session.id, "effect.uncertain", row.turn_id, payload, now_ms)
    if session.status == "waiting":
        waits: Any = jsjson.loads(sessions.document(tx, session.id, "waits") or '{"effectIds":[]}')
        become_uncertain(tx, session, waits["effectIds"], now_ms)
    return Resolved("uncertain")


def _lose_repeatable(tx: Tx, session: Session, row: Effect, message: str, now_ms: int) -> Resolved:
    action = effects.action(tx, session.id, row.effect_id)
    assert action is not None
    if action.state != "sent":
        return Resolved("repeated")  # accepted meanwhile: its outcome comes by itself
    if action.attempts <= REPEATS:
        effects.set_action(tx, session.id, row.effect_id, "new")
        return Resolved("again", repeat=action.attempts)
    text = f"{message}, {action.attempts} times"
    failed = {"kind": "failed", "code": FUNCTION_FAILED, "message": text}
    return _complete(tx, session, row, jsjson.dumps({"value": failed}), now_ms)


def resolved_message(run_id: str, effect_id: str, outcome: str) -> dict[str, Any]:
    """The params of `effect.resolved`."""
    return {"runId": run_id, "effectId": effect_id, "outcome": RawJson(outcome)}
