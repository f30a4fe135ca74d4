"""Close codes and reasons that both ends of the Harness API use (harness-api 1.3)."""

from __future__ import annotations

from typing import Final

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
INVALID_DATA: Final = 1007

NOT_JSON: Final = "Harness API frames are JSON text"
INVALID_FRAME: Final = "invalid frame: "

MAX_REASON_BYTES: Final = 120


def cut_reason(reason: str) -> str:
    """The reason in at most 120 bytes of UTF-8; a character that is cut through becomes U+FFFD.

    The replacement character takes three bytes itself, so a cut reason may be up to two bytes longer.
    """
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "replace")
