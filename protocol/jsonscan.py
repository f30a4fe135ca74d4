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
    """Facts about one text.

    `depth` is exact where it passes the limit the scan was given, else it may be too high, within the limit.
    `plain` speaks of keys and surrogates only; numbers are seen when they are read.
    """

    depth: int
    long_digits: bool
    index_keys: bool
    plain: bool


def scan(data: bytes, depth_limit: int) -> Scan:
    """Looks over UTF-8 JSON text."""
    bare = _fill_escapes(data)
    depth = bare.count(b"[") + bare.count(b"{")
    if depth > depth_limit:
        depth = _depth(bare)
    digits = bare.translate(_DIGITS)
    escapes = b"\\" in bare
    unicode_escapes = escapes and b"\\u" in bare
    return Scan(
        depth=depth,
        long_digits=b"0" * _LONG_DIGITS in digits,
        index_keys=(unicode_escapes and b"\\u003" in bare)
        or (b'"0' in digits and _INDEX_KEY.search(bare) is not None),
        plain=not (
            ((escapes or not bare.isascii()) and _has_odd_keys(bare))
            or (unicode_escapes and _has_lone_half(bare))
        ),
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


_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = _table({b"[{": b"\x01", b"]}": b"\xff"})


def _depth(bare: bytes) -> int:
    """Most containers open at once."""
    # Taking out two quotes that stand side by side leaves everything else inside or outside of strings.
    marks = bare.translate(None, _NO_MARKS).replace(b'""', b"")
    outside = b"".join(marks.split(b'"')[::2])
    steps = memoryview(outside.translate(_STEPS)).cast("b")
    return max(accumulate(steps, initial=0))


# Keys that are array indices


_INDEX_KEY: Final = re.compile(rb'"(?:0|[1-9][0-9]{0,9})"[ \t\n\r]*:')

# Keys that are not ASCII


_LEAD_BYTES: Final = bytes(range(0xC0, 0x100))
_KEY_MARKS: Final = _table({_LEAD_BYTES + b"\\": b"N"})
_KEY_NOISE: Final = bytes(set(range(0xC0)) - set(b'":\\'))


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
    return _HALF.search(_PAIR.sub(b"_", bare)) is not None
