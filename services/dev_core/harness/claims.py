"""`event`: which sandbox events a harness may write into a session's log (harness-api 4.1)."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.methods import EventParams
from services.dev_core.effects.held import storable
from services.dev_core.store import events, sessions
from services.dev_core.store.transaction import Tx

TENANT_ID: Final = "tn_dev"
"""The one Tenant of a development core: a constant, so that workspaces outlive its database."""

KEY_PREFIX: Final = f"nylorun-{TENANT_ID}-"


def check_record(params: EventParams) -> None:
    """The rules for a record that comes with an event. Raises HarnessApiError `invalid`."""
    if params.record is UNSET:
        return
    if params.type != "sandbox.state":
        raise HarnessApiError("invalid", "Only sandbox.state carries a workspace record")
    if params.record.session_id != params.session_id:
        raise HarnessApiError("invalid", "The workspace record belongs to another session")
    if not params.record.key.startswith(KEY_PREFIX):
        raise HarnessApiError("invalid", "The workspace record has the key of another Tenant")


def store_event(tx: Tx, params: EventParams, plain: bool, now_ms: int) -> None:
    """Appends a claimed event, and keeps its record; a session that does not exist is no error."""
    if sessions.load(tx, params.session_id) is None:
        return
    turn_id = None if params.turn_id is None else storable(params.turn_id)
    payload = jsjson.dumps(params.payload, plain=plain)
    events.append(tx, params.session_id, params.type, turn_id, payload, now_ms)
    if params.record is not UNSET:
        record = jsjson.dumps(msgspec.to_builtins(params.record))
        tx.run(
            "INSERT INTO workspaces (key, session_id, record, updated_ms) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET session_id = excluded.session_id, record = excluded.record, "
            "updated_ms = excluded.updated_ms",
            (params.record.key, params.session_id, record, now_ms),
        )
