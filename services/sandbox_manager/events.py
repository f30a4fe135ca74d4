"""`sandbox.state` and `sandbox.exec`: what core is told (sandbox-manager 7). Members in the spec's order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.outcomes import Outcome
from services.sandbox_manager.records import Record
from services.sandbox_manager.text import head

STATE: Final = "sandbox.state"
EXEC: Final = "sandbox.exec"
COMMAND_UNITS: Final = 500
LOST_NOTE: Final = "The workspace had to be made again; earlier files and installed programs may be gone."


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """An event to be claimed for a session; `turn_id` None for an idle stop."""

    session_id: str
    turn_id: str | None
    type: str
    payload: Mapping[str, JsonValue]
    record: Record | None = None


Emit = Callable[[SandboxEvent], Awaitable[None]]
"""Returns when core has answered the claim, or there is nobody to ask. Never fails."""


def opening_payload(
    state: str, backend: str, isolation: str, image: str, network: str
) -> dict[str, JsonValue]:
    """What `creating` and `running` have in common."""
    return {"state": state, "backend": backend, "isolation": isolation, "image": image, "network": network}


def stopped_payload(backend: str, error: str | None = None) -> dict[str, JsonValue]:
    """`stopped`; `error` only after a failed start."""
    payload: dict[str, JsonValue] = {"state": "stopped", "backend": backend}
    if error is not None:
        payload["error"] = error
    return payload


def exec_payload(
    tool: str, report: Mapping[str, JsonValue], outcome: Outcome, duration_ms: int
) -> dict[str, JsonValue]:
    """One finished tool call."""
    payload: dict[str, JsonValue] = {"tool": tool, **report}
    command = payload.get("command")
    if isinstance(command, str):
        payload["command"] = head(command, COMMAND_UNITS)
    payload["outcome"] = outcome["kind"]
    if "code" in outcome:
        payload["code"] = outcome["code"]
    payload["durationMs"] = duration_ms
    return payload
