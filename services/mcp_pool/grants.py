"""The newest run token of each session, for connections that outlive runs (mcp-pool 9.2)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from services.mcp_pool.limits import GRANTS


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
        self._grants: OrderedDict[tuple[str, str], Grant] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grants)

    def put(self, tenant_id: str, session_id: str, epoch: int, token: str | None, expires_at: str) -> bool:
        """Keeps a grant. False when one of a higher epoch is held; without a token nothing changes."""
        key = (tenant_id, session_id)
        held = self._grants.get(key)
        if held is not None and held.epoch > epoch:
            return False
        if token:
            self._grants[key] = Grant(epoch, expires_at, token)
            self._grants.move_to_end(key)
            if len(self._grants) > self._limit:
                self._grants.popitem(last=False)
        return True

    def token(self, tenant_id: str, session_id: str) -> str | None:
        """The newest token of a session, also after its run has ended."""
        held = self._grants.get((tenant_id, session_id))
        return held.token if held is not None else None
