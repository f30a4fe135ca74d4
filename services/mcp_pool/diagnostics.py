"""What people are told about each server (mcp-pool 5.5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from protocol.jsjson import JsonValue
from protocol.utf16 import utf16_truncate
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.failures import AUTHORIZATION_REFUSED, McpFailure
from services.mcp_pool.limits import DIAGNOSTIC_UNITS

Diagnostic = dict[str, JsonValue]

RETURNED_401: Final = "MCP server returned 401"
_WORD_401: Final = re.compile(r"\b401\b", re.ASCII)


def connected(server: ServerName, omitted: Sequence[str] = ()) -> Diagnostic:
    """The server is connected; `omitted` are the model-facing names that were left out."""
    message = f"Connected. Omitted {', '.join(omitted)}" if omitted else "Connected"
    return {**server.members(), "outcome": "connected", "message": message}


def not_connected(server: ServerName, failure: McpFailure) -> Diagnostic:
    """The server was refused, or failed."""
    if failure.message.startswith(AUTHORIZATION_REFUSED):
        refused: Diagnostic = {**server.members(), "outcome": "refused", "message": failure.message}
        if failure.credential_ids:
            refused["credentialIds"] = list(failure.credential_ids)
        return refused
    return {**server.members(), "outcome": "failed", "message": failure_text(failure)}


def failure_text(failure: McpFailure) -> str:
    """A failure's message as diagnostics have it."""
    if failure.code == 401 or _WORD_401.search(failure.message):
        return RETURNED_401
    return utf16_truncate(failure.message, DIAGNOSTIC_UNITS)
