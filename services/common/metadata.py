"""Names of the gRPC metadata that Whippletree's calls carry, and how their values are made and read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

Metadata = tuple[tuple[str, str], ...]

AUTHORIZATION: Final = "authorization"
"""`Bearer <token of the service>`."""

ACCEPTED: Final = "x-whippletree-accepted"
"""`1` in initial metadata: the executor took the call and its turn has come."""

LIMIT_MS: Final = "x-whippletree-limit-ms"
"""The executor's own limit for the work, in milliseconds from its start."""

NOT_STARTED: Final = "x-whippletree-not-started"
"""`1` in trailing metadata: the call was refused before any work."""

AFFINITY: Final = "x-nylorun-affinity"
"""Lower-case hex SHA-256 of the key that calls are kept together by."""

RUN_TOKEN: Final = "x-nylorun-run-token"
"""The run token of the session, when there is one. Never logged."""

TRACEPARENT: Final = "traceparent"
"""W3C trace context."""

run_token: Final[ContextVar[str | None]] = ContextVar("whippletree_run_token", default=None)
"""The run token of the call that is being served, None without one; set by the port's edge."""


def affinity_of(key: str) -> str:
    """The value of `x-nylorun-affinity` for a key. Raises UnicodeEncodeError for a lone surrogate."""
    return hashlib.sha256(key.encode()).hexdigest()


def find(metadata: Iterable[tuple[str, str | bytes]] | None, name: str) -> str | None:
    """The first value of a name, or None."""
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None
