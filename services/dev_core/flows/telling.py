"""What the log of a workflow session says of a linked turn that can't go on by itself."""

from __future__ import annotations

from typing import Literal

from services.dev_core.store import effects, events, links
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Tx


def tell_parent(
    tx: Tx, session: Session, kind: Literal["agent.paused", "agent.uncertain"], now_ms: int
) -> None:
    """Writes that a linked session waits for a person; nothing for one that is not linked."""
    if session.parent_id is None:
        return
    link = links.of_turn(tx, session.id, session.turn_id)
    row = None if link is None else effects.load(tx, link.session_id, link.effect_id)
    if link is not None and row is not None:
        text = f'{row.label[:-1]},"sessionId":"{session.id}"}}'
        events.append(tx, link.session_id, kind, link.turn_id, text, now_ms)
