"""Whether a value that nobody vouches for may be written the fast way."""

from __future__ import annotations

from typing import Any, Final

from protocol.jsjson import MAX_SAFE, RawJson

MAX_LEVELS: Final = 200
"""Deeper values are left to the writer that knows no limit."""


def writes_fast(value: Any, levels: int = MAX_LEVELS) -> bool:
    """Whether `jsjson.dumps` may be told that a value is plain, so that orjson writes it as JavaScript does.

    For documents of a few dozen members, where looking costs a tenth of writing them the slow way. A lone
    surrogate is not looked for: orjson refuses it, and `dumps` then writes the value itself.
    """
    kind = type(value)
    if kind is str or kind is bool or kind is RawJson or value is None:
        return True
    if kind is int:
        return bool(-MAX_SAFE <= value <= MAX_SAFE)
    if levels == 0:
        return False
    if kind is dict:
        for key, item in value.items():
            # A key that may be an array index has a place of its own among JavaScript's members.
            if "0" <= key[:1] <= "9" or (type(item) is not str and not writes_fast(item, levels - 1)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) is str or writes_fast(item, levels - 1) for item in value)
    return False
