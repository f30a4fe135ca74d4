"""How JavaScript turns odd values into strings and numbers, for input that nobody has checked.

Core's `workspace.*` requests carry tool input as people wrote it (sandbox-manager 9.1); the original gives
it to template strings and arithmetic, and so must we to answer the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from protocol.jsjson import JsonValue, stringify_number

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)")
_PREFIXED: Final = re.compile(r"0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_WHITE: Final = (
    "\ufeff \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_BASES: Final = {"x": 16, "o": 8, "b": 2}


def members(value: JsonValue) -> Mapping[str, JsonValue]:
    """The members of an object; anything else has none."""
    return value if isinstance(value, dict) else {}


def text_of(input_: Mapping[str, JsonValue], name: str) -> str:
    """`String(input.name)`: a missing member reads `undefined`."""
    return to_string(input_[name]) if name in input_ else "undefined"


def given(input_: Mapping[str, JsonValue], name: str) -> bool:
    """The member is neither missing nor null, so that its default does not apply."""
    return input_.get(name) is not None


def to_string(value: JsonValue) -> str:
    """`String(value)`."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, list):
        return ",".join("" if item is None else to_string(item) for item in value)
    return "[object Object]"


def number_text(number: float) -> str:
    """`String(number)`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return stringify_number(number)


def to_number(value: JsonValue) -> float:
    """`Number(value)`: NaN where JavaScript says so."""
    if isinstance(value, bool):
        return 1 if value else 0
    if isinstance(value, int | float):
        return value
    if value is None:
        return 0
    if isinstance(value, str):
        return _string_to_number(value)
    if isinstance(value, list):
        return _string_to_number(to_string(value))
    return math.nan


def trim(text: str) -> str:
    """`text.trim()`: what JavaScript takes for white space, which is not what Python does."""
    return text.strip(_WHITE)


def _string_to_number(text: str) -> float:
    trimmed = trim(text)
    if not trimmed:
        return 0
    if _PREFIXED.fullmatch(trimmed):
        return float(int(trimmed[2:], _BASES[trimmed[1].lower()]))
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed)
    infinite = {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
    return infinite.get(trimmed, math.nan)


def to_slice_index(number: float, length: int) -> int:
    """A position as `Array.prototype.slice` reads it: 0 for NaN, from the end when negative, clamped."""
    if math.isnan(number):
        return 0
    if math.isinf(number):
        return length if number > 0 else 0
    whole = int(number)
    return max(length + whole, 0) if whole < 0 else min(whole, length)
