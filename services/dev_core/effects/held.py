"""What a transaction knows of the run it serves, and the checks that come before every write of one."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from protocol.errors import HarnessApiError
from services.dev_core.manifests import Engine
from services.dev_core.store import sessions
from services.dev_core.store.effects import EffectStatus, Runner
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Tx

_PLAIN_ID: Final = re.compile(r"[\x21-\x7e]{1,512}")


class HeldRun(msgspec.Struct, frozen=True):
    """A run's grant: who may write, for which turn."""

    run_id: str
    session_id: str
    turn_id: str
    segment: int
    epoch: int
    owner: str
    agent_id: str
    manifest_hash: str
    cursor: int
    """The position the run started from."""
    engine: Engine = "agent"


def own_session(tx: Tx, run: HeldRun) -> Session:
    """The run's session. Raises HarnessApiError `ownership_lost` when the run owns it no more."""
    session = sessions.load(tx, run.session_id)
    if session is None or session.epoch != run.epoch or session.lease_owner != run.owner:
        raise HarnessApiError("ownership_lost", f"Another owner has session {run.session_id}")
    return session


class OwnedEffect(msgspec.Struct, frozen=True):
    """An effect of a run that owns its session; `status` None: it was never asked for.

    `active`: the run's turn is still the one under way.
    """

    session_id: str
    effect_id: str
    active: bool
    turn_id: str
    kind: str
    runner: Runner
    status: EffectStatus | None
    request_hash: str
    label: str
    outcome: str | None


class HandedOut(msgspec.Struct, frozen=True):
    """An effect that a harness carries out, as far as it never changes; `label` as in the effect's row."""

    kind: str
    label: str


def own_effect(tx: Tx, run: HeldRun, effect_id: str) -> OwnedEffect:
    """`own_session` and one of its effects in a single look: most transactions begin with it."""
    row = tx.one(
        "SELECT s.turn_id IS ?, f.turn_id, f.kind, f.runner, f.status, f.request_hash, f.label, f.outcome "
        "FROM sessions s LEFT JOIN effects f ON f.session_id = s.id AND f.effect_id = ? "
        "WHERE s.id = ? AND s.epoch = ? AND s.lease_owner = ?",
        (run.turn_id, effect_id, run.session_id, run.epoch, run.owner),
    )
    if row is None:
        raise HarnessApiError("ownership_lost", f"Another owner has session {run.session_id}")
    return OwnedEffect(run.session_id, effect_id, bool(row[0]), *row[1:])


def is_active(session: Session, run: HeldRun) -> bool:
    """Whether the run's turn is still the one under way: nobody cancelled it or started another."""
    return session.turn_id == run.turn_id


def turn_cancelled(run: HeldRun) -> HarnessApiError:
    """The run's turn is not under way any more."""
    return HarnessApiError("turn_cancelled", f"The turn {run.turn_id} is not active")


def check_effect_id(effect_id: str, run: HeldRun) -> None:
    """Refuses an id that no replay of the segment would find (`invalid`).

    Those of a flow hold the names of its stages, in any script.
    """
    prefix = f"{run.turn_id}:{run.segment}:"
    fits = storable(effect_id) == effect_id if run.engine != "agent" else _PLAIN_ID.fullmatch(effect_id)
    if not effect_id.startswith(prefix) or not fits:
        raise HarnessApiError("invalid", f"An effect of this run has an id that begins with {prefix}")


def storable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which the database can't hold."""
    return text.encode("utf-8", "replace").decode()
