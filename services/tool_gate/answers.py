"""What the gate answers about a server (mcp-pool 8.5 and 9.1). Pure: JSON texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.jsjson import JsonValue, dumps
from protocol.utf16 import utf16_truncate
from services.tool_gate.failures import MESSAGE_UNITS, Lost, UpstreamFailure
from services.tool_gate.scrub import scrub

NOTHING: Final = '{"ok":true,"result":null}'
UNKNOWN: Final = "The Tool Gate started this call and has no answer to it."
CANCELLED: Final = "The call was cancelled."
STOPPED: Final = "The Tool Gate was stopped during the call."


def result(value: Mapping[str, Any], secrets: Sequence[str]) -> str:
    """A result, without the credentials that were sent for it."""
    clean, count = scrub(value, secrets)
    redacted: dict[str, JsonValue] = {"redacted": count} if count else {}
    return dumps({"ok": True, "result": clean, **redacted})


def failed(failure: UpstreamFailure, *, call: bool) -> str:
    """A failure. A `call` that may have been carried out is uncertain."""
    error: dict[str, JsonValue] = {"message": utf16_truncate(failure.message, MESSAGE_UNITS)}
    if failure.code is not None:
        error["code"] = failure.code
    if failure.credential_ids:
        error["credentialIds"] = list(failure.credential_ids)
    if call and isinstance(failure, Lost):
        error["uncertain"] = True
    return dumps({"ok": False, "error": error})


def refused(message: str) -> str:
    """The server can't be asked at all."""
    return dumps({"ok": False, "error": {"message": message}})


def uncertain(message: str) -> str:
    """Nobody knows what became of a call."""
    return dumps({"ok": False, "error": {"message": message, "uncertain": True}})
