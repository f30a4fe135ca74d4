"""The order of a manifest's keys (agent-engine 1.1): the root collation of ICU, default strength.

Strings are compared by letters first, then by accents, then by case and form; what is equal in all three
is equal. ASCII keys, which nearly all manifests have, need six lines; other keys take the Unicode collation
algorithm with the weights of `collation_weights`.

One limit: decompositions and combining classes are those of Python's own Unicode data. A mark that is
younger than that data keeps the place it was typed in among other marks, where ICU would reorder it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from protocol.utf16 import join_surrogates

if TYPE_CHECKING:
    from protocol.collation_weights import Element

CollationKey = tuple[Sequence[int], Sequence[int], Sequence[int]]

_CACHED_LENGTH: Final = 64
"""Longer keys are not worth remembering."""


def collated(keys: Iterable[str]) -> list[str]:
    """The keys in order; keys that compare equal keep their places."""
    keys = list(keys)
    if all(map(str.isascii, keys)):
        return sorted(keys, key=_ascii_key)
    return sorted(keys, key=collation_key)


# ASCII: one weight a character, and capitals after small letters where nothing else differs

_ASCII_LETTERS: Final = "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_ASCII_WEIGHTS: Final[dict[int, Any]] = dict.fromkeys(range(0x80))  # controls are ignored
_ASCII_WEIGHTS.update({ord(char): weight for weight, char in enumerate(_ASCII_LETTERS, start=1)})
_ASCII_WEIGHTS.update({ord(char): _ASCII_WEIGHTS[ord(char.lower())] for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
_ASCII_CASES: Final[dict[int, Any]] = {
    code: weight and int(chr(code).isupper()) for code, weight in _ASCII_WEIGHTS.items()
}


def _ascii_key(key: str) -> tuple[str, str]:
    return _short_ascii_key(key) if len(key) <= _CACHED_LENGTH else _make_ascii_key(key)


def _make_ascii_key(key: str) -> tuple[str, str]:
    return key.translate(_ASCII_WEIGHTS), key.translate(_ASCII_CASES)


_short_ascii_key = lru_cache(maxsize=4096)(_make_ascii_key)


# Everything else: the Unicode collation algorithm


def collation_key(text: str) -> CollationKey:
    """A key that orders any strings."""
    return _short_key(text) if len(text) <= _CACHED_LENGTH else _make_key(text)


def _make_key(text: str) -> CollationKey:
    # The weights take a megabyte or two, and most processes never see such a key.
    from protocol.collation_weights import weights

    table = weights()
    starts = table.contraction_starts
    chars = _decomposed(join_surrogates(text))
    out: list[Element] = []
    at = 0
    while at < len(chars):
        unit = chars[at]
        at += 1
        if unit in starts:
            unit, at = _contraction(chars, at - 1, table.contractions, starts[unit])
        out += table.elements(unit)
    primaries = tuple(primary for primary, _, _ in out if primary)
    secondaries = tuple(secondary for _, secondary, _ in out if secondary)
    return primaries, secondaries, tuple(tertiary for _, _, tertiary in out if tertiary)


_short_key = lru_cache(maxsize=4096)(_make_key)


_NORMALIZED_LENGTH: Final = 1024
"""Python puts marks in order by insertion, which takes forever in a long run of them."""


def _decomposed(text: str) -> list[str]:
    """The characters of the text's canonical decomposition."""
    if len(text) <= _NORMALIZED_LENGTH:
        return list(unicodedata.normalize("NFD", text))
    chars = [part for char in text for part in unicodedata.normalize("NFD", char)]
    classes = list(map(unicodedata.combining, chars))
    start = 0
    for is_mark, run in groupby(map(bool, classes)):
        end = start + sum(1 for _ in run)
        if is_mark:
            chars[start:end] = sorted(chars[start:end], key=unicodedata.combining)
        start = end
    return chars


_MARKS_LOOKED_AT: Final = 32
"""A contraction is looked for across so many marks; Unicode calls a text with over 30 in a row unsafe."""


def _contraction(chars: list[str], at: int, contractions: Container[str], longest: int) -> tuple[str, int]:
    """The longest string from here that has weights of its own, and where the next one begins.

    Marks that complete it from behind other marks are blanked in `chars`.
    """
    unit = chars[at]
    at += 1
    for size in range(longest, 1, -1):
        candidate = "".join(chars[at - 1 : at - 1 + size])
        if candidate in contractions:
            unit = candidate
            at += size - 1
            break
    blocking = 0
    for index in range(at, min(at + _MARKS_LOOKED_AT, len(chars))):
        mark = chars[index]
        mark_class = unicodedata.combining(mark) if mark else 0
        if mark_class == 0:
            break
        if mark_class > blocking and unit + mark in contractions:
            unit += mark
            chars[index] = ""
        else:
            blocking = mark_class
    return unit, at
