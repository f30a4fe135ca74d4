"""The bearer check of a service's port (operations 12.4): constant time, health exempt, reflection not."""

from __future__ import annotations

import hmac
from typing import Final

EXEMPT_PREFIX: Final = "/grpc.health.v1.Health/"
REFUSAL_TEXT: Final = "The bearer token is missing or wrong."
STRANGER_TEXT: Final = "No name in the client's certificate is an allowed one."
_SCHEME: Final = "bearer "


class BearerCheck:
    """Knows the tokens that open a port: a comma list, so that they can be changed without an outage.

    No token at all lets everybody in; only a Unix socket that its folder protects may be served so.
    """

    def __init__(self, tokens: str | None) -> None:
        self._tokens = [part.encode() for part in (tokens or "").split(",") if part]

    @property
    def open(self) -> bool:
        """Nothing is asked for."""
        return not self._tokens

    def allows(self, header: str | bytes | None) -> bool:
        """Whether an `authorization` header opens the port. Takes the same time whichever token is close."""
        if not self._tokens:
            return True
        if header is None:
            return False
        text = header if isinstance(header, str) else header.decode("latin-1")
        scheme, given = text[: len(_SCHEME)], text[len(_SCHEME) :].encode("utf-8", "replace")
        fits = False
        for token in self._tokens:
            fits |= hmac.compare_digest(given, token)
        return fits and scheme.lower() == _SCHEME
