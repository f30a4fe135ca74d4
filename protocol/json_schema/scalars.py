"""Strings, numbers, booleans, null, and the values that `enum` and `const` list."""

from __future__ import annotations

import math
from typing import Any, Final

from protocol.js_regex import JsRegex
from protocol.jsjson import stringify_number
from protocol.json_schema.checks import LengthBound
from protocol.json_schema.formats import Format
from protocol.json_schema.js_values import NoPrimitive, float_safe_remainder, is_number, to_string
from protocol.json_schema.nodes import Node, Verdict
from protocol.json_schema.outcome import Fault, Outcome, wrong_type

MAX_SAFE_INTEGER: Final = 2**53 - 1


class StringNode(Node):
    """A string. Order of issues: type, format, lengths, pattern; a length is looked at whatever the type."""

    __slots__ = ("bounds", "format", "format_fault", "pattern", "pattern_fault")
    leaf = True

    def __init__(
        self,
        format_: tuple[Format, str] | None,
        bounds: list[LengthBound],
        pattern: JsRegex | None,
    ) -> None:
        super().__init__()
        self.format = format_[0] if format_ else None
        self.format_fault = Fault("invalid_format", format_[1], goes_on=True) if format_ else None
        self.bounds = bounds
        self.pattern = pattern
        self.pattern_fault = pattern_fault(pattern) if pattern else None

    def test(self, value: Any) -> Verdict:
        if type(value) is not str:
            faults = [wrong_type("string", value)]
            faults.extend(fault for bound in self.bounds if (fault := bound.check(value)))
            return Outcome(value, faults)
        text = value
        faults = []
        if self.format is not None:
            found = self.format(text)
            if found is not None:
                text = found
            elif self.format_fault is not None:
                faults.append(self.format_fault)
        for bound in self.bounds:
            fault = bound.check(text)
            if fault is not None:
                faults.append(fault)
        if self.pattern is not None and self.pattern_fault is not None and not self.pattern.test(text):
            faults.append(self.pattern_fault)
        return None if not faults and text is value else Outcome(text, faults)


def pattern_fault(pattern: JsRegex) -> Fault:
    return Fault("invalid_format", f"Invalid string: must match pattern {pattern}", goes_on=True)


class NumberBound:
    """One of `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`."""

    __slots__ = ("fault", "inclusive", "is_minimum", "limit")

    def __init__(self, limit: int | float, *, is_minimum: bool, inclusive: bool) -> None:
        self.limit = limit
        self.is_minimum = is_minimum
        self.inclusive = inclusive
        self.fault = bound_fault("number", limit, is_minimum=is_minimum, inclusive=inclusive)

    def fits(self, number: int | float) -> bool:
        if number == self.limit:
            return self.inclusive
        return number > self.limit if self.is_minimum else number < self.limit


def bound_fault(kind: str, limit: int | float, *, is_minimum: bool, inclusive: bool) -> Fault:
    code, adjective, sign = ("too_small", "small", ">") if is_minimum else ("too_big", "big", "<")
    shown = f"{sign}{'=' if inclusive else ''}{stringify_number(limit)}"
    return Fault(code, f"Too {adjective}: expected {kind} to be {shown}", goes_on=True)


_TOO_BIG: Final = bound_fault("int", MAX_SAFE_INTEGER, is_minimum=False, inclusive=True)
_TOO_SMALL: Final = bound_fault("int", -MAX_SAFE_INTEGER, is_minimum=True, inclusive=True)


class NumberNode(Node):
    """A number. A fraction where an integer is expected is reported alone, a too large one with the rest."""

    __slots__ = ("bounds", "integer", "step", "step_fault")
    leaf = True

    def __init__(self, *, integer: bool, bounds: list[NumberBound], step: int | float | None) -> None:
        super().__init__()
        self.integer = integer
        self.bounds = bounds
        self.step = step
        self.step_fault = None
        if step is not None:
            message = f"Invalid number: must be a multiple of {stringify_number(step)}"
            self.step_fault = Fault("not_multiple_of", message, goes_on=True)

    def test(self, value: Any) -> Verdict:
        if not is_number(value) or not math.isfinite(value):
            return Outcome(value, [wrong_type("number", value)])
        faults = []
        if self.integer:
            if value % 1 != 0:
                return Outcome(value, [wrong_type("int", value, goes_on=False)])
            if value > MAX_SAFE_INTEGER:
                faults.append(_TOO_BIG)
            elif value < -MAX_SAFE_INTEGER:
                faults.append(_TOO_SMALL)
        faults.extend(bound.fault for bound in self.bounds if not bound.fits(value))
        if (
            self.step is not None
            and self.step_fault is not None
            and float_safe_remainder(float(value), float(self.step)) != 0
        ):
            faults.append(self.step_fault)
        return Outcome(value, faults) if faults else None


class BooleanNode(Node):
    __slots__ = ()
    leaf = True

    def test(self, value: Any) -> Verdict:
        return None if type(value) is bool else Outcome(value, [wrong_type("boolean", value)])


class NullNode(Node):
    __slots__ = ()
    leaf = True

    def test(self, value: Any) -> Verdict:
        return None if value is None else Outcome(value, [wrong_type("null", value)])


class ValuesNode(Node):
    """One of some values. Arrays and objects equal nothing, not even themselves."""

    __slots__ = ("_fault", "_others", "_texts")
    leaf = True

    def __init__(self, values: list[Any]) -> None:
        super().__init__()
        self._texts = frozenset(value for value in values if isinstance(value, str))
        self._others = frozenset(
            (isinstance(value, bool), value)
            for value in values
            if value is None or isinstance(value, bool | int | float)
        )
        self._fault = _values_fault(values)

    def test(self, value: Any) -> Verdict:
        if type(value) is str:
            if value in self._texts:
                return None
        elif (value is None or isinstance(value, bool | int | float)) and (
            isinstance(value, bool),
            value,
        ) in self._others:
            return None
        return Outcome(value, [self._fault])


def _values_fault(values: list[Any]) -> Fault:
    """The issue that names the values."""
    try:
        shown = [f'"{value}"' if isinstance(value, str) else to_string(value) for value in values]
    except NoPrimitive:
        return Fault("invalid_value", None)
    if len(shown) == 1:
        return Fault("invalid_value", f"Invalid input: expected {shown[0]}")
    return Fault("invalid_value", f"Invalid option: expected one of {'|'.join(shown)}")
