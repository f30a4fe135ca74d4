"""What can go wrong with a remote MCP server, and how a Tool Gate says it (mcp-pool 8.5 and 9.1).

    UpstreamFailure
    ├── Unreachable      the request was never sent
    ├── Refused          no credential may be sent: `MCP authorization refused: …`
    ├── HttpStatus       an HTTP error instead of an MCP answer
    ├── RpcError         a JSON-RPC error
    ├── AnswerInvalid    an answer that is not MCP's, or too large
    ├── SessionGone      the server does not know its session any more: nothing was done
    └── Lost             the request was sent and no answer came: it may have been carried out
        └── TimedOut

Texts are made for people; they hold no credential and no exception's own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

AUTHORIZATION_REFUSED: Final = "MCP authorization refused"
MESSAGE_UNITS: Final = 2000
"""UTF-16 units of an error's message; what a server writes may be longer."""


class UpstreamFailure(Exception):
    """A server could not do what was asked. `code`: an HTTP status, or a JSON-RPC code."""

    def __init__(self, message: str, *, code: int | None = None, credential_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.credential_ids = tuple(credential_ids)


class Unreachable(UpstreamFailure):
    """The request was never sent."""


class Refused(UpstreamFailure):
    """The gate sends no credential there."""

    def __init__(self, reason: str, credential_ids: Sequence[str]) -> None:
        super().__init__(f"{AUTHORIZATION_REFUSED}: {reason}", credential_ids=credential_ids)


class HttpStatus(UpstreamFailure):
    """The server answered with an HTTP status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"The MCP server answered with HTTP status {status}{_HINTS.get(status, '')}.", code=status
        )


_HINTS: Final = {
    401: ": it wants a credential. The Tool Gate sends the headers of its configuration; signing in (OAuth) "
    "is not built",
    403: ": the credential it was sent may not do this",
}


class RpcError(UpstreamFailure):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"MCP error {code}: {message}", code=code)
        self.text = message


class AnswerInvalid(UpstreamFailure):
    """The server's answer is not what MCP describes."""


class SessionGone(UpstreamFailure):
    """The server does not know the session; it did not look at the request."""

    def __init__(self) -> None:
        super().__init__("The MCP server does not know its session any more.")


class Lost(UpstreamFailure):
    """The request was sent, and nobody knows what became of it."""


class TimedOut(Lost):
    """No answer in time. `notifications/cancelled` is sent."""
