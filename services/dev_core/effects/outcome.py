"""`effect.outcome`: what the harness's executors came to (harness-api 8.3)."""

from __future__ import annotations

from typing import Any

from protocol.errors import HarnessApiError
from services.dev_core.effects.held import (
    HandedOut,
    HeldRun,
    OwnedEffect,
    own_effect,
    storable,
    turn_cancelled,
)
from services.dev_core.store import effects, events
from services.dev_core.store.effects import Effect
from services.dev_core.store.transaction import Tx


def record_value(
    tx: Tx,
    run: HeldRun,
    effect_id: str,
    value: str,
    *,
    failed: bool,
    cancelled: bool,
    now_ms: int,
    handed_out: HandedOut | None = None,
) -> str:
    """Commits a value (JSON text) and returns the effect's outcome, which is the first one recorded.

    `failed`: the value is a failure outcome. `cancelled`: the run's abort is a cancel. `handed_out`: the
    effect, when it was handed out to this run. Raises HarnessApiError; then nothing was written.
    """
    outcome = f'{{"value":{value}}}'
    if handed_out is not None and not cancelled:
        # The usual case in one look: everything that could refuse it stands in the condition.
        completed = effects.complete_held(
            tx,
            run.session_id,
            run.turn_id,
            effect_id,
            outcome,
            epoch=run.epoch,
            owner=run.owner,
            now_ms=now_ms,
        )
        if completed:
            kind = completed_event(handed_out.kind, failed=failed)
            events.append(
                tx, run.session_id, kind, run.turn_id, handed_out.label, now_ms, effect_id=effect_id
            )
            return outcome
    row = own_effect(tx, run, effect_id)
    if row.status is None or row.turn_id != run.turn_id:
        raise HarnessApiError("invalid", f"The effect {effect_id} was never asked for in this turn")
    if cancelled or not row.active:
        raise turn_cancelled(run)
    if row.status == "completed":
        assert row.outcome is not None
        return row.outcome
    if row.status != "invoking":
        raise HarnessApiError("invalid", f"The effect {effect_id} is {row.status}: it is not the harness's")
    effects.complete(tx, run.session_id, effect_id, outcome, now_ms)
    append_completed(tx, row, now_ms, failed=failed)
    return outcome


def record_error(tx: Tx, run: HeldRun, effect_id: str, error: str, now_ms: int) -> None:
    """Commits that nobody knows the effect's outcome. Raises HarnessApiError `ownership_lost` only."""
    row = own_effect(tx, run, effect_id)
    if row.status != "invoking":
        return
    message = storable(error)
    effects.make_uncertain(tx, run.session_id, effect_id, message, now_ms)
    if row.active:
        payload = {"effectId": effect_id, "message": message}
        events.append(tx, run.session_id, "effect.uncertain", run.turn_id, payload, now_ms)


def append_completed(tx: Tx, row: Effect | OwnedEffect, now_ms: int, *, failed: bool = False) -> None:
    """The event of an effect that has its outcome, which the event shows."""
    kind = completed_event(row.kind, failed=failed)
    events.append(tx, row.session_id, kind, row.turn_id, row.label, now_ms, effect_id=row.effect_id)


def completed_event(effect_kind: str, *, failed: bool = False) -> str:
    """The type of the event that shows an effect's outcome."""
    match effect_kind:
        case "model":
            return "model.failed" if failed else "message.assistant"
        case "hook":
            return "hook.completed"
        case "fn":
            return "function.completed"
        case "agent" | "verify":
            return f"{effect_kind}.completed"
        case _:
            return "tool.completed"


def is_failure(value: Any) -> bool:
    """Whether an effect's value is a failure outcome."""
    return isinstance(value, dict) and value.get("kind") == "failed"
