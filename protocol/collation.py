"""The order of a manifest's keys (agent-engine 1.1): the root collation of ICU, default strength.

Strings are compared by letters first, then by accents, then by case and form; what is equal in all three
is equal. ASCII keys, which nearly all manifests have, need six lines; other keys take the Unicode collation
algorithm with the weights of `collation_weights`.

One limit: decompositions and combining classes are those of Python's own Unicode data. A mark that is
younger than that data keeps the place it was typed in among other marks, where ICU would reorder it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from protocol.utf16 import join_surrogates

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
    chars = list(unicodedata.normalize("NFD", join_surrogates(text)))
    primaries: list[int] = []
    secondaries: list[int] = []
    tertiaries: list[int] = []
    at = 0
    while at < len(chars):
        unit, at = _next_unit(chars, at, table.contractions, table.contraction_starts)
        for primary, secondary, tertiary in table.elements(unit):
            if primary:
                primaries.append(primary)
            if secondary:
                secondaries.append(secondary)
            if tertiary:
                tertiaries.append(tertiary)
    return tuple(primaries), tuple(secondaries), tuple(tertiaries)


_short_key = lru_cache(maxsize=4096)(_make_key)


def _next_unit(
    chars: list[str], at: int, contractions: dict[str, Any], starts: dict[str, int]
) -> tuple[str, int]:
    """The longest string from here that has weights of its own, and where the next one begins.

    Marks that complete it are taken out of `chars` even when others stand between.
    """
    unit = chars[at]
    longest = starts.get(unit)
    if longest is None:
        return unit, at + 1
    length = 1
    for size in range(longest, 1, -1):
        candidate = "".join(chars[at : at + size])
        if candidate in contractions:
            unit, length = candidate, size
            break
    end = at + length
    blocking = 0
    while end < len(chars):
        mark_class = unicodedata.combining(chars[end])
        if mark_class == 0:
            break
        if mark_class > blocking and unit + chars[end] in contractions:
            unit += chars.pop(end)
        else:
            blocking = mark_class
            end += 1
    return unit, at + length
