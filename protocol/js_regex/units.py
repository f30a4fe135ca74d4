"""Sets of UTF-16 code units, the alphabet of a JavaScript pattern without flags."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Inclusive, ascending, apart from each other."""

LAST_UNIT: Final = 0xFFFF
EVERYTHING: Final[Ranges] = ((0, LAST_UNIT),)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Any inclusive ranges as a set."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Ranges) -> Ranges:
    """Every unit that is not in the set."""
    outside = []
    start = 0
    for low, high in ranges:
        if low > start:
            outside.append((start, low - 1))
        start = high + 1
    if start <= LAST_UNIT:
        outside.append((start, LAST_UNIT))
    return tuple(outside)


def contains(ranges: Ranges, unit: int) -> bool:
    at = bisect_right(ranges, (unit, LAST_UNIT)) - 1
    return at >= 0 and ranges[at][1] >= unit


def _of(text: str) -> Ranges:
    return ranges_of((ord(char), ord(char)) for char in text)


DIGITS: Final = ranges_of([(0x30, 0x39)])
WORD: Final = ranges_of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE: Final = ranges_of(
    [
        (0x09, 0x0D),
        (0x20, 0x20),
        (0xA0, 0xA0),
        (0x1680, 0x1680),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x202F, 0x202F),
        (0x205F, 0x205F),
        (0x3000, 0x3000),
        (0xFEFF, 0xFEFF),
    ]
)
LINE_ENDS: Final = _of("\n\r\u2028\u2029")
NO_LINE_END: Final = inverted(LINE_ENDS)

CLASSES: Final[dict[str, Ranges]] = {
    "d": DIGITS,
    "D": inverted(DIGITS),
    "w": WORD,
    "W": inverted(WORD),
    "s": SPACE,
    "S": inverted(SPACE),
}


@cache
def _case_groups() -> tuple[tuple[int, ...], ...]:
    """Units that are the same where case does not count, in groups of two and more."""
    groups: dict[int, list[int]] = {}
    for unit in range(LAST_UNIT + 1):
        groups.setdefault(_folded(unit), []).append(unit)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _folded(unit: int) -> int:
    """The upper case of a unit where that is one unit; a unit beyond ASCII never folds into ASCII."""
    upper = chr(unit).upper()
    if len(upper) != 1 or ord(upper) > LAST_UNIT or (unit >= 0x80 and ord(upper) < 0x80):
        return unit
    return ord(upper)


def without_case(ranges: Ranges) -> Ranges:
    """The set with both cases of everything in it."""
    more = [
        (unit, unit)
        for group in _case_groups()
        if any(contains(ranges, unit) for unit in group)
        for unit in group
    ]
    return ranges_of([*ranges, *more])
