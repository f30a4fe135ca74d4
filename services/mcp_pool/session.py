"""Whose servers: the session, and the pool's key of one of its servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from services.mcp_pool.declarations import ServerName


class PoolKey(NamedTuple):
    """Whose connection: never shared across tenants, sessions, agents or capabilities."""

    tenant_id: str
    session_id: str
    name: ServerName


@dataclass(frozen=True, slots=True)
class Session:
    """Whose servers."""

    tenant_id: str
    session_id: str

    def key(self, name: ServerName) -> PoolKey:
        """The pool's key of a server."""
        return PoolKey(self.tenant_id, self.session_id, name)
