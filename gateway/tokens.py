"""The newest run token of each session (harness-api 5.2)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

MAX_SESSIONS: Final = 10_000
"""Sessions whose token is kept; the least recently granted one goes first."""


@dataclass(frozen=True, slots=True)
class RunToken:
    """What core granted: the token itself (never shown), and when it ends (ISO 8601) where core says so."""

    token: str = field(repr=False)
    epoch: int
    expires_at: str | None = None


class RunTokens:
    """Tokens by session. They stay after a run has ended, because MCP connections live on."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._tokens: OrderedDict[str, RunToken] = OrderedDict()

    def grant(self, session_id: str, epoch: int, token: str | None, expires_at: str | None) -> None:
        """Keeps a granted token. A grant without one, or of an older epoch, changes nothing."""
        if not token:
            return
        known = self._tokens.get(session_id)
        if known is not None and known.epoch > epoch:
            return
        self._tokens[session_id] = RunToken(token, epoch, expires_at)
        self._tokens.move_to_end(session_id)
        while len(self._tokens) > self._max_sessions:
            self._tokens.popitem(last=False)

    def current(self, session_id: str) -> str | None:
        """The session's newest token."""
        known = self._tokens.get(session_id)
        return None if known is None else known.token

    def __len__(self) -> int:
        return len(self._tokens)
