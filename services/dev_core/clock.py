"""Wall-clock time and fresh ids."""

from __future__ import annotations

import secrets
import time
import uuid
from datetime import UTC, datetime
from functools import lru_cache


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def iso_time(milliseconds: int) -> str:
    """UTC in ISO 8601 with milliseconds and `Z`."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=128)
def _second(seconds: int) -> str:
    """Kept, because everything that streams events writes the same few seconds over and over."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def new_id(prefix: str) -> str:
    """`<prefix>_` and 64 random bits in hex: unique without being long, since ids end up inside ids."""
    return f"{prefix}_{secrets.token_hex(8)}"


def new_run_id() -> str:
    """A random UUID (version 4)."""
    return str(uuid.uuid4())
