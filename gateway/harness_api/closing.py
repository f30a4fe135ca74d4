"""Close codes and reasons of the Harness API (harness-api 1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NORMAL: Final = 1000
INVALID_DATA: Final = 1007
ABNORMAL: Final = 1006
"""What a peer sees when the TCP connection ends without a close frame; never sent."""

STOPPED: Final = "harness stopped"
RECONNECTING: Final = "reconnecting"
NOT_JSON: Final = "Harness API frames are JSON text"
INVALID_FRAME: Final = "invalid frame: "

MAX_REASON_BYTES: Final = 120


@dataclass(frozen=True, slots=True)
class Close:
    """A close frame to send after everything that stands before it."""

    code: int
    reason: str


def cut_reason(reason: str) -> str:
    """The reason in at most 120 bytes of UTF-8; a character that is cut through becomes U+FFFD.

    The replacement character takes three bytes itself, so a cut reason may be up to two bytes longer.
    """
    data = reason.encode("utf-8", "replace")
    if len(data) <= MAX_REASON_BYTES:
        return data.decode()
    return data[:MAX_REASON_BYTES].decode("utf-8", "replace")


def describe_close(code: int, peer_reason: str, local_reason: str) -> str:
    """How a lost connection is logged: the peer's reason, else ours, and the code unless it is 1000."""
    reason = peer_reason or local_reason
    if code == NORMAL:
        return reason
    return f"{reason} ({code})" if reason else f"({code})"
