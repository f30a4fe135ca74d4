"""The event log of a session: appended only, numbered from 1 without gaps."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from protocol import jsjson
from protocol.jsjson import RawJson
from services.dev_core.clock import iso_time
from services.dev_core.store.transaction import Tx

_APPEND: Final = (
    "INSERT INTO events (session_id, seq, type, turn_id, effect_id, base, time_ms, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_TURN: Final = "turn."
"""Begins the types of events that say how a turn stands: whoever watches a session waits for these."""


class Event(msgspec.Struct, frozen=True):
    """One event; `payload` is JSON text, with the outcome of its effect where it shows one."""

    seq: int
    type: str
    turn_id: str | None
    time_ms: int
    payload: str

    def document(self, session_id: str) -> dict[str, Any]:
        """The event as people read it."""
        return {
            "seq": self.seq,
            "type": self.type,
            "sessionId": session_id,
            "turnId": self.turn_id,
            "time": iso_time(self.time_ms),
            "payload": RawJson(self.payload),
        }


def append(
    tx: Tx,
    session_id: str,
    kind: str,
    turn_id: str | None,
    payload: dict[str, Any] | str,
    now_ms: int,
    *,
    effect_id: str | None = None,
    base: int | None = None,
) -> int:
    """Writes one event and returns its seq.

    A payload that is not text holds nothing but names, texts and small integers of ours. With `effect_id`
    the event shows the outcome of that effect, which must be recorded: readers find it as `outcome` at the
    end of the payload, which then may not be empty.
    """
    text = payload if isinstance(payload, str) else jsjson.dumps(payload, plain=True)
    seq = tx.next_seq(session_id)
    tx.run(_APPEND, (session_id, seq, kind, turn_id, effect_id, base, now_ms, text))
    tx.touch(session_id, at_once=kind.startswith(_TURN))
    return seq


def last_seq(tx: Tx, session_id: str) -> int:
    """The seq of the newest event, 0 when there is none."""
    row = tx.one("SELECT max(seq) FROM events WHERE session_id = ?", (session_id,))
    return int(row[0] or 0) if row else 0


def page(
    tx: Tx, session_id: str, after: int, *, limit: int, max_chars: int, types: tuple[str, ...] = ()
) -> list[Event]:
    """Events after a seq, in order: at most `limit`, and no more once their text passes `max_chars`."""
    return page_and_rest(tx, session_id, after, limit=limit, max_chars=max_chars, types=types)[0]


def page_and_rest(
    tx: Tx, session_id: str, after: int, *, limit: int, max_chars: int, types: tuple[str, ...] = ()
) -> tuple[list[Event], bool]:
    """`page`, and whether there may be more after it."""
    only = f"AND e.type IN ({', '.join('?' * len(types))}) " if types else ""
    rows = tx.each(
        "SELECT e.seq, e.type, e.turn_id, e.time_ms, e.payload, f.outcome FROM events e "
        "LEFT JOIN effects f ON f.session_id = e.session_id AND f.effect_id = e.effect_id "
        f"WHERE e.session_id = ? AND e.seq > ? {only}ORDER BY e.seq LIMIT ?",
        (session_id, after, *types, limit),
    )
    found: list[Event] = []
    size = 0
    for seq, kind, turn_id, time_ms, payload, outcome in rows:
        text = payload if outcome is None else f'{payload[:-1]},"outcome":{outcome}}}'
        if found and size + len(text) > max_chars:
            return found, True
        size += len(text)
        found.append(Event(seq, kind, turn_id, time_ms, text))
    return found, len(found) == limit
