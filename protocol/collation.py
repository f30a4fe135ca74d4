"""The order of a manifest's keys (agent-engine 1.1): the root collation of ICU, default strength.

Exact for ASCII keys. Other keys are ordered by an approximation: characters are decomposed, letters with
marks sort beside their base letter, then marks decide, then case. Scripts follow code point order, and
contractions, expansions that are not decompositions, and ignorable characters beyond the controls are not
known. A manifest with such keys may therefore get another hash than with ICU.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

_ASCII_PRIMARIES: Final = "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_WEIGHTS: Final = {char: weight for weight, char in enumerate(_ASCII_PRIMARIES, start=1)}

CollationKey = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=4096)
def _short_key(text: str) -> CollationKey:
    return _key(text)


def collation_key(text: str) -> CollationKey:
    """A key that orders strings as manifests order their members; equal keys keep their place."""
    return _short_key(text) if len(text) <= 64 else _key(text)


def _key(text: str) -> CollationKey:
    primaries: list[int] = []
    marks: list[int] = []
    cases: list[int] = []
    for char in text if text.isascii() else unicodedata.normalize("NFD", text):
        weight = _WEIGHTS.get(char)
        if weight is not None:
            upper = 0
        elif "A" <= char <= "Z":
            weight, upper = _WEIGHTS[char.lower()], 1
        elif char < "\x80":
            continue  # controls are ignored
        elif unicodedata.combining(char):
            marks.append(0x10 + ord(char))
            cases.append(0)
            continue
        else:
            lower = char.lower()
            weight, upper = 0x100 + ord(lower[0]), int(lower != char)
        primaries.append(weight)
        marks.append(0)
        cases.append(upper)
    return tuple(primaries), tuple(marks), tuple(cases)
