"""A person's answers: approvals and responses to a paused turn, and its cancel."""

from __future__ import annotations

from typing import Any

from protocol import jsjson
from services.dev_core.problems import Problem, no_session
from services.dev_core.store import events, links, sessions
from services.dev_core.store.sessions import OPEN_STATUSES, Session
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.ending import end_turn


def open_interactions(pending: str | None) -> list[dict[str, Any]]:
    """The interactions of a paused turn's `pending` document: {id, kind, prompt, …, toolName, callId}."""
    calls: Any = jsjson.loads(pending) if pending is not None else []
    found: list[dict[str, Any]] = []
    for call in calls if isinstance(calls, list) else []:
        interaction = call.get("interaction") if isinstance(call, dict) else None
        if isinstance(interaction, dict) and call.get("status") == "interaction":
            found.append(
                {**interaction, "toolName": call.get("toolName"), "callId": call.get("callId")}
                | {"args": call.get("args")}
            )
    return found


def linked_interactions(tx: Tx, session_id: str) -> list[dict[str, Any]]:
    """What the linked sessions of a turn ask a person, each with the `sessionId` of the one that asks."""
    found: list[dict[str, Any]] = []
    for link in links.running(tx, session_id):
        linked = sessions.load(tx, link.linked_id)
        if linked is None:
            continue
        if linked.status == "paused":
            asked = open_interactions(sessions.document(tx, linked.id, "pending"))
            found += [{**interaction, "sessionId": linked.id} for interaction in asked]
        else:
            found += linked_interactions(tx, linked.id)
    return found


def answer(tx: Tx, session_id: str, given: dict[str, Any], now_ms: int) -> tuple[str, int]:
    """Commits an approval or a response (the checkpoint's input): the next segment becomes runnable.

    An answer to what a linked session asks goes to that session. Returns the session that took it and the
    event's seq. Raises Problem when there is no such interaction to answer.
    """
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    if session.status in ("waiting", "uncertain", "running"):
        for asked in linked_interactions(tx, session_id):
            if asked.get("id") == given["interactionId"]:
                return answer(tx, asked["sessionId"], given, now_ms)
    if session.status != "paused":
        raise Problem(
            "not_paused",
            f"Session {session_id} is {session.status}: only a paused turn takes approvals and responses.",
        )
    _check_open(tx, session, given)
    text = jsjson.dumps(given)
    sessions.put_document(tx, session_id, "input", text)
    sessions.drop_document(tx, session_id, "pending")
    tx.run(
        "UPDATE sessions SET status = 'runnable', segment = segment + 1, updated_ms = ? WHERE id = ?",
        (now_ms, session_id),
    )
    sessions.set_turn(tx, session_id, session.turn_id, "running")
    seq = events.append(tx, session_id, "turn.resumed", session.turn_id, f'{{"input":{text}}}', now_ms)
    return session_id, seq


def _check_open(tx: Tx, session: Session, given: dict[str, Any]) -> None:
    interactions = open_interactions(sessions.document(tx, session.id, "pending"))
    wanted = "approval" if given["kind"] == "approve" else "response"
    for interaction in interactions:
        if interaction.get("id") != given["interactionId"]:
            continue
        if interaction.get("kind") != wanted:
            other = "respond" if wanted == "approval" else "approve"
            raise Problem(
                "invalid",
                f"The interaction {given['interactionId']!r} asks for {_what(interaction)}: answer it with "
                f"POST /v1/sessions/{session.id}/{other}.",
            )
        return
    names = ", ".join(str(interaction.get("id")) for interaction in interactions) or "none"
    raise Problem(
        "not_found",
        f"Session {session.id} has no open interaction {given['interactionId']!r}; open: {names}.",
    )


def _what(interaction: dict[str, Any]) -> str:
    return "an approval" if interaction.get("kind") == "approval" else "a response"


def cancel(tx: Tx, session_id: str, now_ms: int) -> bool:
    """Commits a person's cancel before anybody is told (harness-api 8.5).

    The session stands where it stood before the turn. False when the turn was cancelled before. Raises
    Problem when there is nothing to cancel.
    """
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    if session.status == "cancelled":
        return False
    if session.status not in OPEN_STATUSES:
        raise Problem("turn_over", f"Session {session_id} is {session.status}: no turn is under way.")
    end_turn(tx, session, "cancelled", "{}", now_ms)
    return True
