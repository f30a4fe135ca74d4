"""What a JSON text needs from its reader and its writer, found by scans at C speed.

Nothing here decides whether the text is JSON: for text that is not, the answers are merely harmless. Each
test may say yes without need (that costs time, never correctness) but never no.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

PLAIN_DEPTH: Final = 250
"""orjson writes at most 254 levels."""

_LONG_DIGITS: Final = 16
"""An integer of fewer digits is below 2^53."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Facts about one text. `plain` speaks of keys and surrogates only; numbers are seen when read."""

    depth: int
    long_digits: bool
    index_keys: bool
    plain: bool


def scan(data: bytes) -> Scan:
    """Looks over UTF-8 JSON text."""
    bare = _fill_escapes(data)
    escapes = b"\\" in bare
    digits = bare.translate(_DIGITS)
    return Scan(
        depth=depth_of(bare),
        long_digits=b"0" * _LONG_DIGITS in digits,
        index_keys=_has_index_keys(bare, digits, escapes),
        plain=(bare.isascii() and not escapes) or not (_has_odd_keys(bare) or _has_lone_half(bare)),
    )


def _fill_escapes(data: bytes) -> bytes:
    """The text, of the same length, in which every quote begins or ends a string."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def blank_strings(data: bytes) -> bytes:
    """The text, of the same length, with underscores for what its strings hold."""
    parts = _fill_escapes(data).split(b'"')
    parts[1::2] = [b"_" * len(part) for part in parts[1::2]]
    return b'"'.join(parts)


def _table(mapping: dict[bytes, bytes]) -> bytes:
    table = bytearray(range(256))
    for sources, target in mapping.items():
        for source in sources:
            table[source] = target[0]
    return bytes(table)


_DIGITS: Final = _table({b"0123456789": b"0"})

# Deepest nesting


_BRACKETS_AND_QUOTES: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = _table({b"[{": b"\x01", b"]}": b"\xff"})


def depth_of(bare: bytes) -> int:
    """Most containers open at once, in text whose strings hold no escaped quotes."""
    marks = bare.translate(None, _BRACKETS_AND_QUOTES)
    outside = b"".join(marks.split(b'"')[::2])
    if not outside:
        return 0
    steps = memoryview(outside.translate(_STEPS)).cast("b")
    return max(accumulate(steps, initial=0))


# Keys that are array indices


_INDEX_KEY: Final = re.compile(rb'"(?:0|[1-9][0-9]{0,9})"[ \t\n\r]*:')


def _has_index_keys(bare: bytes, digits: bytes, escapes: bool) -> bool:
    if escapes and b"\\u003" in bare:
        return True
    return b'"0' in digits and _INDEX_KEY.search(bare) is not None


# Keys that are not ASCII


_NON_ASCII: Final = bytes(range(0x80, 0x100))
_KEY_MARKS: Final = _table({_NON_ASCII + b"\\": b"N"})
_KEY_NOISE: Final = bytes(set(range(0x80)) - set(b'":\\'))


def _has_odd_keys(bare: bytes) -> bool:
    marks = bare.translate(_KEY_MARKS, _KEY_NOISE)
    # The quote after an N ends a string. One between two colons mostly begins a string value, but it may
    # end a key such as "é:", so that case is looked at closely.
    if b'N":' in marks:
        return True
    if b':":' not in marks:
        return False
    parts = marks.split(b'"')
    return any(
        b"N" in inside and after.startswith(b":")
        for inside, after in zip(parts[1::2], parts[2::2], strict=False)
    )


# Lone surrogates


_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def _has_lone_half(bare: bytes) -> bool:
    if b"\\ud" not in bare and b"\\uD" not in bare:
        return False
    return _HALF.search(_PAIR.sub(b"_", bare)) is not None
