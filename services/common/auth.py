"""The bearer check of a service's port (operations 12.4): constant time, health exempt, reflection not."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from services.common.metadata import AUTHORIZATION

EXEMPT_PREFIX: Final = "/grpc.health.v1.Health/"
REFUSAL_TEXT: Final = "The bearer token is missing or wrong."
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

    def allows(self, method: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
        """Whether a call may go on. Takes the same time whichever token is close."""
        if not self._tokens or method.startswith(EXEMPT_PREFIX):
            return True
        for name, value in metadata or ():
            if name == AUTHORIZATION:
                return self._fits(value if isinstance(value, str) else value.decode("latin-1"))
        return False

    def _fits(self, header: str) -> bool:
        scheme, given = header[: len(_SCHEME)], header[len(_SCHEME) :].encode("utf-8", "replace")
        fits = False
        for token in self._tokens:
            fits |= hmac.compare_digest(given, token)
        return fits and scheme.lower() == _SCHEME
