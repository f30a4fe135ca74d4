"""Which aborts end a tool call, and which let it finish (mcp-pool 8.2)."""

from __future__ import annotations

from typing import Final

from services.common.effect_run import CANCEL, SHUTDOWN
from services.mcp_pool.declarations import DeclaredServer

STDIO: Final = frozenset({CANCEL})
"""A server that is our child: only a person's cancel. What else ends the run lets the call finish."""

REMOTE: Final = frozenset({CANCEL, SHUTDOWN})
"""A server behind the gate: after a shutdown the gate keeps the call for the run's next owner."""


def stopping(server: DeclaredServer) -> frozenset[int]:
    """The kinds that end a call of a server's tool, and the wait for its connection."""
    return STDIO if server.is_stdio else REMOTE
