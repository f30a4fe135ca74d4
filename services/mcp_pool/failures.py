"""What can go wrong with an MCP server. Texts are made for people and end up in diagnostics and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

AUTHORIZATION_REFUSED: Final = "MCP authorization refused"
"""How the text of a refusal begins; the Tool Gate writes it (mcp-pool 5.5)."""


class McpFailure(Exception):
    """A server could not be reached, did not answer, or answered with an error.

    `code` is the error's number, when the server or the gate gave one; `credential_ids` are those that a
    refusal named.
    """

    def __init__(self, message: str, *, code: int | None = None, credential_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.credential_ids = tuple(credential_ids)


class LaunchFailed(McpFailure):
    """A declaration cannot be launched, or its program cannot be started (mcp-pool 3)."""


class OverLimit(McpFailure):
    """All connections that may be open are in use. Nothing was started; it may be tried again."""


class NotSent(McpFailure):
    """The connection had ended before a request was written: it may be made again on a new one."""


class ConnectionLost(McpFailure):
    """The connection ended while a request was under way; whether it was carried out is unknown."""


class RequestTimedOut(McpFailure):
    """No answer in time. `notifications/cancelled` was written."""


class ServerError(McpFailure):
    """The server answered with a JSON-RPC error."""


class AnswerInvalid(McpFailure):
    """The server answered something that is not the result MCP describes (mcp-pool 4)."""


class RequestAborted(Exception):
    """The caller's abort ended a request; a later answer is dropped. `kind` is a value of AbortKind."""

    def __init__(self, kind: int) -> None:
        super().__init__(kind)
        self.kind = kind
