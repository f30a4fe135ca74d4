"""JavaScript's view of JSON values, as far as verdicts and messages show it."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from protocol.jsjson import stringify_number

JS_WHITESPACE: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What ECMAScript's `trim` takes away and `\\s` matches."""


class Absent:
    """The value of a member that is not there (`undefined`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()
"""Stands for `undefined`; may be validated like any value, and is the value where a schema accepts that."""


class Inherited:
    """What an object without such a member still answers for a name of `Object.prototype`: a function."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length


INHERITED: Final = {
    "constructor": Inherited(1),
    "hasOwnProperty": Inherited(1),
    "isPrototypeOf": Inherited(1),
    "propertyIsEnumerable": Inherited(1),
    "toLocaleString": Inherited(0),
    "toString": Inherited(0),
    "valueOf": Inherited(0),
    "__defineGetter__": Inherited(2),
    "__defineSetter__": Inherited(2),
    "__lookupGetter__": Inherited(1),
    "__lookupSetter__": Inherited(1),
}
"""Members every JavaScript object seems to have; a schema that declares one sees them where they are absent."""

PROTO: Final = "__proto__"
"""The member that is read but never written to a validated object."""


def truthy(value: object) -> bool:
    """`!!value`; arrays and objects count, empty or not."""
    if isinstance(value, list | dict):
        return True
    if isinstance(value, Absent):
        return False
    return bool(value)


def is_number(value: object) -> bool:
    """A JSON number (a boolean is none)."""
    kind = type(value)
    return kind is int or kind is float


def type_name(value: object) -> str:
    """The type as `invalid_type` messages name it; a number too large for a double by its value."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str:
        return "string"
    if kind is bool:
        return "boolean"
    if kind is int:
        return "number"
    if kind is float:
        return "number" if math.isfinite(value) else to_string(value)  # type: ignore[arg-type]
    if kind is list:
        return "array"
    if kind is dict:
        return "object"
    return "undefined" if value is ABSENT else "function"


class NoPrimitive(ValueError):
    """JavaScript makes no text and no number of an object that has a member `toString`."""


def to_string(value: Any) -> str:
    """`String(value)`. Nested arrays come out flat, as `join` makes them. Raises `NoPrimitive`."""
    if not isinstance(value, list):
        return _scalar_to_string(value)
    parts: list[str] = []
    left: list[Any] = [value]
    while left:
        entry = left.pop()
        if isinstance(entry, list) and entry:
            left.extend(reversed(entry))
        elif entry is None or isinstance(entry, list):
            parts.append("")
        else:
            parts.append(_scalar_to_string(entry))
    return ",".join(parts)


def _scalar_to_string(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return stringify_number(value)
    if isinstance(value, dict) and "toString" in value:
        raise NoPrimitive
    return "[object Object]"


_DECIMAL: Final = re.compile(r"[+-]?(?:Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_RADIX: Final = re.compile(r"0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_BASES: Final = {"x": 16, "o": 8, "b": 2}


def to_number(value: Any) -> float:
    """`Number(value)`. Raises `NoPrimitive`."""
    if value is None or value is False:
        return 0.0
    if value is True:
        return 1.0
    if isinstance(value, int | float):
        return float(value)
    text = to_string(value).strip(JS_WHITESPACE)
    if not text:
        return 0.0
    if _RADIX.fullmatch(text):
        digits = int(text[2:], _BASES[text[1].lower()])
        return float(digits) if digits < 2**1023 else math.inf
    return float(text) if _DECIMAL.fullmatch(text) else math.nan


def length_of(value: Any) -> Any:
    """`value.length`: code points of a string, items of an array, the member of an object; else ABSENT."""
    if isinstance(value, str | list):
        return len(value)
    if isinstance(value, dict):
        return value.get("length", ABSENT)
    return value.length if isinstance(value, Inherited) else ABSENT


def float_safe_remainder(value: float, step: float) -> float:
    """How far a quotient is from a whole number; 0 where only the doubles' own rounding is in the way."""
    if step == 0:
        return math.nan
    ratio = value / step
    if not math.isfinite(ratio):
        return math.nan
    rounded = math.floor(ratio)
    if ratio - rounded >= 0.5:
        rounded += 1
    difference = ratio - rounded
    tolerance = 4 * 2.0**-52 * max(abs(ratio), 1.0)
    return 0.0 if abs(difference) < tolerance else difference
