"""Size checks, shared by strings, arrays and tuples.

They run also on a value of the wrong type as long as it has a length: an array where a string was expected gets
both issues. That is why the type named in the message is the value's.
"""

from __future__ import annotations

from typing import Any, Final

from protocol.jsjson import stringify_number
from protocol.json_schema.js_values import ABSENT, is_number, length_of, to_number
from protocol.json_schema.outcome import Fault

_UNITS: Final[dict[type, tuple[str, str]]] = {str: ("string", "characters"), list: ("array", "items")}


class LengthBound:
    """`minLength`, `maxLength`, `minItems` or `maxItems`."""

    __slots__ = ("is_minimum", "limit")

    def __init__(self, limit: int | float, *, is_minimum: bool) -> None:
        self.limit = limit
        self.is_minimum = is_minimum

    def check(self, value: Any) -> Fault | None:
        """The issue, or None when the length is within the bound or the value has none."""
        length = length_of(value)
        if length is ABSENT:
            return None
        number = length if is_number(length) else to_number(length)
        if number >= self.limit if self.is_minimum else number <= self.limit:
            return None
        return self.fault(value)

    def fault(self, value: Any) -> Fault:
        code, adjective, sign = ("too_small", "small", ">=") if self.is_minimum else ("too_big", "big", "<=")
        limit = sign + stringify_number(self.limit)
        units = _UNITS.get(type(value))
        size = f"unknown to be {limit}" if units is None else f"{units[0]} to have {limit} {units[1]}"
        return Fault(code, f"Too {adjective}: expected {size}", goes_on=True)


def length_bounds(schema: dict[str, Any], minimum: str, maximum: str) -> list[LengthBound]:
    """The bounds that a schema names, the lower one first."""
    bounds = []
    for key, is_minimum in ((minimum, True), (maximum, False)):
        limit = number_of(schema, key)
        if limit is not None:
            bounds.append(LengthBound(limit, is_minimum=is_minimum))
    return bounds


def number_of(schema: dict[str, Any], key: str) -> int | float | None:
    """A keyword's number; None where there is none."""
    number: Any = schema.get(key)
    return number if is_number(number) else None
