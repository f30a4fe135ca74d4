"""Where strings and nesting are in a JSON text, found by scans at C speed.

Nothing here decides whether the text is JSON: for text that is not, the answers are merely harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Final


def depth_of(data: bytes) -> int:
    """Most containers of UTF-8 JSON text that are open at once."""
    # Taking out two quotes that stand side by side leaves everything else inside or outside of strings.
    marks = _fill_escapes(data).translate(None, _NO_MARKS).replace(b'""', b"")
    outside = b"".join(marks.split(b'"')[::2])
    steps = memoryview(outside.translate(_STEPS)).cast("b")
    return max(accumulate(steps, initial=0))


def blank_strings(data: bytes) -> bytes:
    """The text, of the same length, with underscores for what its strings hold."""
    parts = _fill_escapes(data).split(b'"')
    parts[1::2] = [b"_" * len(part) for part in parts[1::2]]
    return b'"'.join(parts)


def nested_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the containers stand that are directly inside the outermost one: first byte, byte behind the last.

    One that does not end reaches to the end of the text.
    """
    for span in _NESTED.finditer(_levels(blank_strings(data))):
        # What stands behind the span is the bracket that ends it.
        yield span.start(), min(span.end() + 1, len(data))


def _levels(blank: bytes) -> bytes:
    """How many containers are open behind each byte: 0, 1, or 2 for more.

    It ends behind a block in which more are closed than were open: that is no JSON, whatever follows.
    """
    levels: list[bytes] = []
    depth = 0
    for start in range(0, len(blank), _BLOCK):
        block = blank[start : start + _BLOCK]
        opening = len(block.translate(None, _NOT_OPENING))
        closing = len(block.translate(None, _NOT_CLOSING))
        if depth - closing > 1 or not (opening or closing):
            # Usual where much is nested: the first level is not reached anywhere in the block.
            levels.append(bytes((_LEVELS[min(depth, 2)],)) * len(block))
        else:
            depths = accumulate(memoryview(block.translate(_ALL_STEPS)).cast("b"), initial=depth)
            next(depths)
            levels.append(bytes(map(_LEVELS.__getitem__, depths)))
        depth += opening - closing
        if depth < 0:
            break
    return b"".join(levels)


def _fill_escapes(data: bytes) -> bytes:
    """The text, of the same length, in which every quote begins or ends a string."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def _table(mapping: dict[bytes, bytes]) -> bytes:
    table = bytearray(range(256))
    for sources, target in mapping.items():
        for source in sources:
            table[source] = target[0]
    return bytes(table)


_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = _table({b"[{": b"\x01", b"]}": b"\xff"})
_NOT_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
_NOT_CLOSING: Final = bytes(set(range(256)) - set(b"]}"))
_ALL_STEPS: Final = bytes({0x5B: 1, 0x7B: 1, 0x5D: 255, 0x7D: 255}.get(byte, 0) for byte in range(256))
_NESTED: Final = re.compile(rb"\x02+")
_BLOCK: Final = 4096
_LEVELS: Final = b"\0\1" + b"\2" * (2 * _BLOCK) + b"\0" * _BLOCK
"""The level for each depth that a block can reach where its bytes count; a negative depth counts from the end."""
