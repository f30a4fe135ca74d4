"""How MCP clients of ours introduce themselves, and which versions of the protocol they speak (mcp-pool 4)."""

from __future__ import annotations

from typing import Final

from protocol.jsjson import JsonValue

PROTOCOL_VERSION: Final = "2025-11-25"
ACCEPTED_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07")
METHOD_NOT_FOUND: Final = -32601


def initialize_params() -> dict[str, JsonValue]:
    """The parameters of `initialize`."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "nylorun-runtime", "version": "0.6.0"},
    }
