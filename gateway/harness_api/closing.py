"""How a connection to core is closed, and what is said about it (harness-api 1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.closing import NORMAL

ABNORMAL: Final = 1006
"""What a peer sees when the TCP connection ends without a close frame; never sent."""

STOPPED: Final = "harness stopped"
RECONNECTING: Final = "reconnecting"


@dataclass(frozen=True, slots=True)
class Close:
    """A close frame to send after everything that stands before it."""

    code: int
    reason: str


def describe_close(code: int, peer_reason: str, local_reason: str) -> str:
    """How a lost connection is logged: the peer's reason, else ours, and the code unless it is 1000."""
    reason = peer_reason or local_reason
    if code == NORMAL:
        return reason
    return f"{reason} ({code})" if reason else f"({code})"
