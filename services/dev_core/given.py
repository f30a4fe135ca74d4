"""JSON that people and endpoints hand the core to keep."""

from __future__ import annotations

from typing import Final

from protocol import jsjson
from protocol.jsjson import JsonValue

MAX_GIVEN_DEPTH: Final = 870
"""Levels of nesting. What is kept goes out inside of frames, some levels further down, and harnesses read 900:
a deeper value would make a lease that no harness can read, offered again for ever."""


def read_given(data: bytes) -> JsonValue:
    """The value. Raises JsonDepthError beyond `MAX_GIVEN_DEPTH`, else JsonError."""
    return jsjson.parse(data, max_depth=MAX_GIVEN_DEPTH).value
