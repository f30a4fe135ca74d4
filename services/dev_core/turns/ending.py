"""The end of a turn, however it comes, and what it means for linked turns (flow-engine 9, 14.1).

A turn that ends takes the linked turns along that it still had, and a linked turn that ends brings the effect
it carried out its outcome.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from protocol import jsjson
from services.dev_core.effects.outcome import append_completed
from services.dev_core.store import agents, effects, events, links, sessions
from services.dev_core.store.links import Link
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.lease import wake

AGENT_FAILED: Final = "agent.failed"
AGENT_CANCELLED: Final = "agent.cancelled"
_NULL: Final = "null"


def end_turn(
    tx: Tx,
    session: Session,
    status: Literal["completed", "failed", "cancelled"],
    payload: str,
    now_ms: int,
    *,
    position: tuple[int, int] | None = None,
    output: str | None = None,
) -> None:
    """Ends the turn that is under way. `payload` (JSON text) is its last event's; `output` that of a completed
    turn, when it has one; `position` as for `sessions.end_turn`."""
    effects.withdraw_actions(tx, session.id, session.turn_id)
    sessions.end_turn(tx, session, status, payload, now_ms, position=position)
    events.append(tx, session.id, f"turn.{status}", session.turn_id, payload, now_ms)
    for link in links.open_of(tx, session.id):
        _withdraw(tx, link, now_ms)
    if session.parent_id is None:
        return
    carried = links.of_turn(tx, session.id, session.turn_id)
    if carried is not None:
        links.move(tx, carried, "settled")
        complete_agent(tx, carried, _outcome(tx, session, status, payload, output), now_ms)
    # Whoever waits for this session, or for a place among those that run, may begin.
    tx.move(session.parent_id, "links")


def complete_agent(tx: Tx, link: Link, outcome: str, now_ms: int) -> None:
    """Brings the effect behind a link its outcome, unless its turn is over."""
    row = effects.load(tx, link.session_id, link.effect_id)
    parent = sessions.load(tx, link.session_id)
    if row is None or parent is None or row.status != "pending" or parent.turn_id != row.turn_id:
        return
    effects.complete(tx, link.session_id, link.effect_id, outcome, now_ms)
    append_completed(tx, row, now_ms)
    if wake(tx, parent, now_ms):
        tx.move(parent.id, "runnable")


def failed_agent(code: str, message: str) -> str:
    """The outcome of an agent effect without an output."""
    return jsjson.dumps({"value": {"kind": "failed", "code": code, "message": message}})


def _withdraw(tx: Tx, link: Link, now_ms: int) -> None:
    """The turn that asked for it is over: what was not begun never will be, what runs is cancelled."""
    links.move(tx, link, "withdrawn")
    linked = sessions.load(tx, link.linked_id)
    if link.state != "running" or linked is None or linked.turn_id != link.linked_turn_id:
        return
    end_turn(tx, linked, "cancelled", "{}", now_ms)
    tx.move(linked.id, "cancelled")


def _outcome(tx: Tx, session: Session, status: str, payload: str, output: str | None) -> str:
    if status == "completed":
        value = _NULL if output is None else output
        if session.engine == "agent":
            manifest = agents.manifest(tx, session.turn_manifest_hash or session.manifest_hash)
            value = f'{{"__nylorunAgentTurn":1,"output":{value},"agent":{manifest}}}'
        return f'{{"value":{value}}}'
    if status == "cancelled":
        return failed_agent(AGENT_CANCELLED, "The agent's turn was cancelled")
    return failed_agent(AGENT_FAILED, _reason(jsjson.loads(payload)))


def _reason(payload: Any) -> str:
    error = payload.get("error")
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
    text = message if isinstance(message, str) and message else "The agent's turn failed"
    return f"{code}: {text}" if isinstance(code, str) else text
