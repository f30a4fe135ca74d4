"""The ends of a run: what an output commits, and how it is answered (harness-api 8.4).

One transaction per output. An output that its own turn can't take (an edit that does not fold, a state that
still carries its transcript, …) is a fault of the harness: it is refused `invalid`, and the turn fails with
that reason, because a replay would only bring the same output again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.methods import TranscriptEdit, TurnOutput
from protocol.transcript import Entry
from services.dev_core.effects.held import HeldRun, is_active, own_session, storable, turn_cancelled
from services.dev_core.flows.telling import tell_parent
from services.dev_core.manifests import Engine
from services.dev_core.store import effects, events, sessions
from services.dev_core.store.sessions import Session, Status
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.ending import end_turn
from services.dev_core.turns.lease import mark_invoking_uncertain

AbortKind: TypeAlias = Literal["cancel", "shutdown", "deadline", "ownership.lost"]

_STATUSES_OF: Final[dict[str, frozenset[str]]] = {
    "turn.completed": frozenset({"completed"}),
    "turn.paused": frozenset({"paused"}),
    "checkpoint": frozenset({"yielded"}),
    "turn.waiting": frozenset({"waiting", "uncertain"}),
    "turn.failed": frozenset({"failed", "cancelled"}),
}
_CONTINUE: Final = '{"kind":"continue"}'


@dataclass(frozen=True, slots=True)
class Abort:
    """Why core aborted the run's advance."""

    kind: AbortKind
    message: str


class Edit(msgspec.Struct, frozen=True):
    """One recorded edit: the entries that were appended after `keep` others."""

    keep: int
    entries: tuple[Entry, ...]


class Settled(msgspec.Struct, frozen=True):
    """What an output came to.

    `cursor` is answered when the transcript was kept, `refusal` is answered instead of a result. `offer`:
    the session has something to run. `edits` lead from the run's starting transcript to the one at `cursor`.
    """

    cursor: int | None = None
    refusal: HarnessApiError | None = None
    offer: bool = False
    edits: tuple[Edit, ...] = ()


def check_output(method: str, output: TurnOutput, engine: Engine) -> str | None:
    """What is wrong with an output by itself; None when it is as harness-api 5.7 says."""
    if output.thrown is not UNSET:
        if method != "turn.failed" or output.status is not UNSET:
            return "a thrown error is reported as turn.failed without a status"
        return None
    if output.status not in _STATUSES_OF[method]:
        return f"{method} can't report the status {output.status if output.status is not UNSET else 'none'}"
    if engine != "agent":
        if output.status in ("paused", "yielded"):
            return f"a flow is never {output.status}"
        if output.state is not UNSET or output.transcript is not UNSET:
            return "a flow has neither a state nor a transcript"
    elif output.status in ("completed", "paused", "yielded") and (
        not isinstance(output.state, dict) or output.transcript is UNSET
    ):
        return "the output of an agent has its state and the edits of its transcript"
    if output.state is not UNSET and (
        not isinstance(output.state, dict) or output.state.get("transcript") != []
    ):
        return "the state of an output is an object with an empty transcript"
    if output.status in ("waiting", "uncertain") and not output.effect_ids:
        return "a waiting output names the effects it waits for"
    return None


def read_edits(output: TurnOutput, plain: bool) -> tuple[tuple[Edit, int], ...]:
    """The output's edits with the length each leads to; empty when it has none."""
    if output.transcript is UNSET:
        return ()
    return tuple((_edit(edit, plain), edit.length) for edit in output.transcript)


def _edit(edit: TranscriptEdit, plain: bool) -> Edit:
    return Edit(edit.keep, tuple(Entry.from_value(entry, plain) for entry in edit.entries))


class Output(msgspec.Struct, frozen=True):
    """An output with its documents as JSON text, ready for the transaction."""

    method: str
    struct: TurnOutput
    fault: str | None
    edits: tuple[tuple[Edit, int], ...]
    state: str | None
    output: str | None
    pending: str | None
    error: Any

    @classmethod
    def of(cls, method: str, struct: TurnOutput, plain: bool, engine: Engine = "agent") -> Output:
        """Checks the output of a run of that engine, and writes its documents."""
        fault = check_output(method, struct, engine)
        keeps = fault is None and struct.status in ("completed", "paused", "yielded", "cancelled")

        def text(value: Any) -> str | None:
            return None if value is UNSET else jsjson.dumps(value, plain=plain)

        return cls(
            method=method,
            struct=struct,
            fault=fault,
            edits=read_edits(struct, plain) if keeps else (),
            state=text(struct.state) if keeps else None,
            output=text(struct.output),
            pending=text(struct.pending),
            error=None if struct.error is UNSET else struct.error,
        )


def settle(tx: Tx, run: HeldRun, output: Output, abort: Abort | None, now_ms: int) -> Settled:
    """Commits the output and releases the session. Raises HarnessApiError when it writes nothing."""
    session = own_session(tx, run)
    struct = output.struct
    thrown = None if struct.thrown is UNSET else struct.thrown
    if thrown is not None and thrown.code == "ownership_lost":
        raise HarnessApiError("ownership_lost", thrown.message)
    sessions.release_lease(tx, run.session_id)
    if not is_active(session, run):
        return _settle_inactive(session, run, output)
    if output.fault is not None:
        return _refuse_output(tx, session, output.fault, now_ms)
    late = abort is not None and abort.kind == "deadline"
    if thrown is not None:
        message = abort.message if late and abort is not None else thrown.message
        code = None if thrown.code is UNSET else thrown.code
        fail_turn(tx, session, message, now_ms, code=None if late else code)
        return Settled(refusal=HarnessApiError("internal", message))
    match struct.status:
        case "failed" | "cancelled" if late and abort is not None:
            fail_turn(tx, session, abort.message, now_ms, code="deadline")
            return Settled()
        case "failed":
            _fail(tx, session, output.error, now_ms)
            return Settled()
        case "cancelled":
            return _cancelled(tx, session, output, now_ms)
        case "waiting" | "uncertain":
            return _suspend(tx, session, struct, now_ms)
        case _ if session.engine != "agent":
            _complete(tx, session, output, session.position, now_ms)
            return Settled()
        case _:
            return _advance(tx, session, output, now_ms)


def _settle_inactive(session: Session, run: HeldRun, output: Output) -> Settled:
    """The turn was cancelled: nothing is written, and the session may have a new one already."""
    offer = session.status == "runnable"
    if output.struct.thrown is not UNSET:
        return Settled(refusal=HarnessApiError("internal", output.struct.thrown.message), offer=offer)
    if output.fault is not None:
        return Settled(refusal=HarnessApiError("invalid", output.fault), offer=offer)
    if output.struct.status in ("completed", "paused", "yielded"):
        return Settled(refusal=turn_cancelled(run), offer=offer)
    return Settled(offer=offer)


def _refuse_output(tx: Tx, session: Session, reason: str, now_ms: int) -> Settled:
    message = f"The harness reported an output that can't be: {reason}"
    fail_turn(tx, session, message, now_ms, code="output.invalid")
    return Settled(refusal=HarnessApiError("invalid", message))


def fail_turn(tx: Tx, session: Session, message: str, now_ms: int, *, code: str | None = None) -> None:
    """Ends the turn as failed with core's own reason; the session stands where it stood before the turn."""
    error = {"message": message} if code is None else {"code": code, "message": message}
    _end_failed(tx, session, {"message": message, "error": error}, now_ms)


def _fail(tx: Tx, session: Session, error: Any, now_ms: int) -> None:
    kept = error if isinstance(error, dict) else {"message": "The turn failed"}
    _end_failed(tx, session, {"error": kept}, now_ms)


def _end_failed(tx: Tx, session: Session, payload: dict[str, Any], now_ms: int) -> None:
    text = jsjson.dumps(payload)
    end_turn(tx, session, "failed", text, now_ms)


def _cancelled(tx: Tx, session: Session, output: Output, now_ms: int) -> Settled:
    """The harness ended the turn by itself: its state is kept, its entries are not."""
    if output.state is not None:
        sessions.put_document(tx, session.id, "state", output.state)
    end_turn(tx, session, "cancelled", "{}", now_ms)
    return Settled()


def _suspend(tx: Tx, session: Session, struct: TurnOutput, now_ms: int) -> Settled:
    """Waits for what the run could not resolve, unless an outcome arrived while it ended."""
    assert struct.effect_ids is not UNSET
    effect_ids = [storable(effect_id) for effect_id in struct.effect_ids]
    found = effects.statuses(tx, session.id, effect_ids)
    missing = [effect_id for effect_id in effect_ids if effect_id not in found]
    if missing:
        return _refuse_output(tx, session, f"no effect {missing[0]} was asked for", now_ms)
    if "completed" in found.values():
        sessions.set_status(tx, session.id, "runnable", now_ms)
        return Settled(offer=True)
    if "invoking" in found.values():
        mark_invoking_uncertain(tx, session, "The run ended without an outcome of this effect", now_ms)
    uncertain = struct.status == "uncertain" or not set(found.values()) <= {"pending"}
    status: Status = "uncertain" if uncertain else "waiting"
    payload = jsjson.dumps({"effectIds": effect_ids})
    sessions.put_document(tx, session.id, "waits", payload)
    sessions.set_status(tx, session.id, status, now_ms)
    sessions.set_turn(tx, session.id, session.turn_id, status)
    events.append(tx, session.id, f"turn.{status}", session.turn_id, payload, now_ms)
    if status == "uncertain":
        tell_parent(tx, session, "agent.uncertain", now_ms)
    return Settled()


def _advance(tx: Tx, session: Session, output: Output, now_ms: int) -> Settled:
    """Completed, paused and yielded: the edits are recorded and the state is kept."""
    cursor, length = session.position
    for edit, claimed in output.edits:
        kept = edit.keep + len(edit.entries)
        if edit.keep > length or kept != claimed:
            reason = f"an edit keeps {edit.keep} of {length} entries, leads to {kept} and says {claimed}"
            return _refuse_output(tx, session, reason, now_ms)
        length = claimed
    for edit, claimed in output.edits:
        entries = ",".join(entry.text for entry in edit.entries)
        payload = f'{{"keep":{edit.keep},"entries":[{entries}],"length":{claimed}}}'
        cursor = events.append(
            tx, session.id, "transcript.updated", session.turn_id, payload, now_ms, base=cursor
        )
    assert output.state is not None
    offer = False
    if output.struct.status == "completed":
        _complete(tx, session, output, (cursor, length), now_ms)
    else:
        sessions.put_document(tx, session.id, "turn_state", output.state)
        tx.run(
            "UPDATE sessions SET turn_cursor = ?, turn_length = ? WHERE id = ?", (cursor, length, session.id)
        )
        offer = output.struct.status == "yielded"
        if offer:
            _yield(tx, session, now_ms)
        else:
            _pause(tx, session, output, now_ms)
    return Settled(cursor=cursor, offer=offer, edits=tuple(edit for edit, _ in output.edits))


def _complete(tx: Tx, session: Session, output: Output, position: tuple[int, int], now_ms: int) -> None:
    if output.state is not None:
        sessions.put_document(tx, session.id, "state", output.state)
    payload = "{}" if output.output is None else f'{{"output":{output.output}}}'
    end_turn(tx, session, "completed", payload, now_ms, position=position, output=output.output)


def _pause(tx: Tx, session: Session, output: Output, now_ms: int) -> None:
    pending = output.pending if output.pending is not None else "[]"
    sessions.put_document(tx, session.id, "pending", pending)
    sessions.set_status(tx, session.id, "paused", now_ms)
    sessions.set_turn(tx, session.id, session.turn_id, "paused")
    events.append(tx, session.id, "turn.paused", session.turn_id, f'{{"pending":{pending}}}', now_ms)
    tell_parent(tx, session, "agent.paused", now_ms)


def _yield(tx: Tx, session: Session, now_ms: int) -> None:
    sessions.put_document(tx, session.id, "input", _CONTINUE)
    tx.run(
        "UPDATE sessions SET status = 'runnable', segment = segment + 1, updated_ms = ? WHERE id = ?",
        (now_ms, session.id),
    )
    payload = {"segment": session.segment + 1}
    events.append(tx, session.id, "turn.yielded", session.turn_id, payload, now_ms)


def abandon(tx: Tx, run: HeldRun, abort: Abort, now_ms: int) -> bool:
    """Gives up a run that ignored its abort; True when the session is to be offered again.

    The epoch moves, so that what the run still writes is refused. A turn that ran past its deadline fails.
    """
    session = sessions.load(tx, run.session_id)
    if session is None or session.epoch != run.epoch or session.lease_owner != run.owner:
        return False
    tx.run("UPDATE sessions SET epoch = epoch + 1 WHERE id = ?", (session.id,))
    sessions.release_lease(tx, session.id)
    mark_invoking_uncertain(tx, session, abort.message, now_ms)
    if is_active(session, run):
        fail_turn(tx, session, abort.message, now_ms, code=abort.kind)
        return False
    return session.status == "runnable"


def fail_unofferable(tx: Tx, run: HeldRun, message: str, now_ms: int) -> None:
    """Fails a turn whose start can't cross the wire."""
    session = own_session(tx, run)
    sessions.release_lease(tx, session.id)
    if is_active(session, run):
        fail_turn(tx, session, message, now_ms, code="start.too-large")
