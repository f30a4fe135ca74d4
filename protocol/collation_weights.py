"""The weights behind `collation`: unpacked from `collation_table` when they are first needed."""

from __future__ import annotations

import base64
import lzma
import struct
import sys
from array import array
from bisect import bisect_left
from functools import cache
from itertools import accumulate
from typing import Final

Element = tuple[int, int, int]
"""Weights for letters, accents, and case or form. Zero is ignored at that level."""

IMPLICIT: Final = 1 << 22
"""Code points without an entry sort by number, after every one that has an entry below this weight."""

SPECIAL: Final = 1 << 24
"""Weights from here on belong to U+FFFD and U+FFFF, which sort last."""

_RECENT: Final = 4096
"""So many looked-up elements are kept at hand."""

_HEADER: Final = struct.Struct("<5I")


class CollationWeights:
    """Elements of single code points and of contractions.

    Packed form, little-endian: how many code points, elements and bytes of contractions there are, and the
    common second and third weight; then one array after the other: differences of code points (4 bytes),
    elements per code point (1), differences of first weights (4), second weights (2), third weights (1);
    then the contractions, one a line: `code points;weights` in decimal, apart by commas.
    """

    __slots__ = (
        "_code_points",
        "_common",
        "_ends",
        "_primaries",
        "_recent",
        "_secondaries",
        "_tertiaries",
        "contraction_starts",
        "contractions",
    )

    def __init__(self, packed: bytes) -> None:
        points, count, text_size, *common = _HEADER.unpack_from(packed)
        self._common = tuple(common)
        at = _HEADER.size

        def column(kind: str, length: int) -> array[int]:
            nonlocal at
            values = array(kind)
            size = length * values.itemsize
            values.frombytes(packed[at : at + size])
            if sys.byteorder == "big":
                values.byteswap()
            at += size
            return values

        self._code_points = array("I", accumulate(column("I", points)))
        self._ends = array("I", accumulate(column("B", points)))
        self._primaries = array("I", accumulate(column("i", count)))
        self._secondaries = column("H", count)
        self._tertiaries = column("B", count)
        self._recent: dict[str, tuple[Element, ...]] = {}
        self.contractions: dict[str, tuple[Element, ...]] = {}
        self.contraction_starts: dict[str, int] = {}
        for line in packed[at : at + text_size].decode("ascii").splitlines():
            points_text, weights_text = line.split(";")
            text = "".join(chr(int(point)) for point in points_text.split(","))
            numbers = [int(weight) for weight in weights_text.split(",")]
            self.contractions[text] = tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
            self.contraction_starts[text[0]] = max(self.contraction_starts.get(text[0], 2), len(text))

    def elements(self, unit: str) -> tuple[Element, ...]:
        """The elements of a contraction, of a single character, or of nothing."""
        found = self._recent.get(unit)
        if found is None:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            found = self._recent[unit] = self._look_up(unit)
        return found

    def _look_up(self, unit: str) -> tuple[Element, ...]:
        if len(unit) != 1:
            return self.contractions.get(unit, ())
        code_point = ord(unit)
        index = bisect_left(self._code_points, code_point)
        if index == len(self._code_points) or self._code_points[index] != code_point:
            return ((IMPLICIT + code_point, *self._common),)
        start = self._ends[index - 1] if index else 0
        end = self._ends[index]
        return tuple(
            zip(
                self._primaries[start:end],
                self._secondaries[start:end],
                self._tertiaries[start:end],
                strict=True,
            )
        )


@cache
def weights() -> CollationWeights:
    """The one table of the process; about two megabytes."""
    from protocol.collation_table import PACKED

    return CollationWeights(lzma.decompress(base64.b85decode(PACKED)))
