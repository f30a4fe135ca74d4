"""Claims sandbox events at core (harness-api 4.1)."""

from __future__ import annotations

from gateway.connection import Connection
from gateway.executors.contract import SandboxEvent
from protocol.errors import HarnessApiError
from protocol.jsjson import JsonValue
from services.common.logs import get_logger


async def claim_event(connection: Connection, event: SandboxEvent, run_id: str | None) -> None:
    """Claims an event for a run, or for a request of core's when `run_id` is None.

    Returns when core has answered or refused, or the connection is gone. An event that the wire's rules or
    core refuse is logged and dropped: it never fails the call that raised it.
    """
    if connection.closed:
        return
    params: dict[str, JsonValue] = {
        "sessionId": event.session_id,
        "turnId": event.turn_id,
        "type": event.type,
        "payload": event.payload,
    }
    if run_id is not None:
        params["runId"] = run_id
    if event.record is not None:
        params["record"] = dict(event.record)
    try:
        await connection.ask("event", params)
    except HarnessApiError as error:
        get_logger().warning(
            "harness sandbox event not claimed",
            sessionId=event.session_id,
            type=event.type,
            error=error.message,
        )
