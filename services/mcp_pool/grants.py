"""The newest run token of each session, for connections that outlive runs (mcp-pool 9.2)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from services.mcp_pool.limits import GRANTS
from services.mcp_pool.session import Session


@dataclass(frozen=True, slots=True)
class Grant:
    """A run token; `expires_at` is ISO 8601 or empty. The token never shows in a repr."""

    epoch: int
    expires_at: str
    token: str = field(repr=False)


class Grants:
    """At most `limit` sessions; the least recently granted is dropped first."""

    def __init__(self, limit: int = GRANTS) -> None:
        self._limit = limit
        self._grants: OrderedDict[Session, Grant] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grants)

    def put(self, session: Session, epoch: int, token: str | None, expires_at: str) -> bool:
        """Keeps a grant. False when one of a higher epoch is held; without a token nothing changes."""
        held = self._grants.get(session)
        if held is not None and held.epoch > epoch:
            return False
        if token:
            self._grants[session] = Grant(epoch, expires_at, token)
            self._grants.move_to_end(session)
            if len(self._grants) > self._limit:
                self._grants.popitem(last=False)
        return True

    def offer(self, session: Session, token: str | None, epoch: int = 0) -> None:
        """Keeps the token that came with a request; one of epoch 0 (not known) only while there is no other."""
        if epoch or session not in self._grants:
            self.put(session, epoch, token, "")

    def token(self, session: Session) -> str | None:
        """The newest token of a session, also after its run has ended."""
        held = self._grants.get(session)
        return held.token if held is not None else None
