"""Values of awk: numbers, texts, texts from outside that may be numbers, and what was never set."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from services.sandbox_manager.emulated.awk.lexer import AwkError
from services.sandbox_manager.emulated.posix_regex import BadPattern, compile_patterns


class Given(str):
    """A text that came from outside: it compares as a number when it looks like one."""

    __slots__ = ()


Value = float | str | None
_NUMBER: Final = re.compile(r"[ \t\n\r\f\v]*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FORMAT: Final = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?([hlL]*)(.)?", re.DOTALL)
_REGEX_ESCAPES: Final = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "/": "/", '"': '"', "&": "&"}
_EXACT: Final = 1e16
"""Whole numbers below are printed digit by digit from a double without loss."""


def number(value: Value) -> float:
    """A value as a number: of a text what it begins with."""
    if isinstance(value, float):
        return value
    if value is None:
        return 0.0
    found = _NUMBER.match(value)
    return float(found.group()) if found is not None else 0.0


def text(value: Value, form: str = "%.6g") -> str:
    """A value as a text."""
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return str(value)
        if value == int(value) and abs(value) < _EXACT:
            return str(int(value))
        return formatted(form, (value,))
    return "" if value is None else str(value)


def is_numeric(value: Value) -> bool:
    """Whether it compares as a number."""
    if isinstance(value, Given):
        found = _NUMBER.match(value)
        return found is not None and not value[found.end() :].strip(" \t\n\r\f\v")
    return not isinstance(value, str)


def truth(value: Value) -> bool:
    """Whether a condition holds."""
    return number(value) != 0 if is_numeric(value) else bool(value)


def compare(sign: str, left: Value, right: Value) -> bool:
    """A comparison: of numbers when both are, else of texts."""
    if is_numeric(left) and is_numeric(right):
        return _compared(sign, number(left) - number(right))
    first, second = text(left), text(right)
    return _compared(sign, (first > second) - (first < second))


def _compared(sign: str, difference: float) -> bool:
    match sign:
        case "<":
            return difference < 0
        case "<=":
            return difference <= 0
        case "==":
            return difference == 0
        case "!=":
            return difference != 0
        case ">":
            return difference > 0
    return difference >= 0


def calculate(sign: str, left: float, right: float) -> float:
    """One operation. Raises AwkError."""
    try:
        match sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
            case "%":
                return math.fmod(left, right)
        return float(left**right) if left >= 0 or right == int(right) else math.nan
    except ZeroDivisionError:
        raise AwkError("division by zero") from None
    except (OverflowError, ValueError):
        return math.inf if sign in {"*", "^"} else math.nan


@functools.lru_cache(maxsize=256)
def regex(source: str) -> re.Pattern[str]:
    """An expression as awk reads it. Raises AwkError."""
    plain = re.sub(
        r"\\(.)",
        lambda found: _REGEX_ESCAPES.get(found[1], found[0]),
        source.replace("\\n", "[\\n]"),
        flags=re.DOTALL,
    )
    try:
        if "\n" not in plain and "[\\n]" not in plain:
            return compile_patterns(plain, ignore_case=False).expressions[0]
        return re.compile(plain)
    except BadPattern as error:
        raise AwkError(f"{error} in /{source}/") from None
    except re.error:
        raise AwkError(f"the expression /{source}/ can't be read") from None


def splitter(separator: str) -> Callable[[str], list[str]]:
    """What splits a record at a field separator."""
    if separator == " ":
        return lambda record: record.split()
    if separator == "":
        return list
    if len(separator) == 1 and separator != "\\":
        return lambda record: record.split(separator) if record else []
    pattern = regex(separator)
    return lambda record: split_by(pattern, record)


def split_by(pattern: re.Pattern[str], record: str) -> list[str]:
    """The parts of a record between matches that are not empty."""
    if not record:
        return []
    parts: list[str] = []
    at = 0
    for found in pattern.finditer(record):
        if found.end() > found.start():
            parts.append(record[at : found.start()])
            at = found.end()
    return [*parts, record[at:]]


def formatted(form: str, values: Sequence[Value]) -> str:
    """`sprintf`."""
    left = iter(values)
    return _FORMAT.sub(lambda found: _one(found, lambda: next(left, None)), form)


def _one(found: re.Match[str], following: Callable[[], Value]) -> str:
    flags, width, precision, _, kind = found.groups()
    if kind is None:
        return found.group()
    if kind == "%":
        return "%"
    if width == "*":
        given = int(number(following()))
        flags, width = (flags + "-", str(-given)) if given < 0 else (flags, str(given))
    if precision == "*":
        precision = str(max(int(number(following())), 0))
    dotted = f".{precision or 0}" if "." in found.group() else ""
    start = f"%{flags}{width or ''}{dotted}"
    if kind == "c":
        value = following()
        shown = chr(int(value) % 0x110000) if isinstance(value, float) else text(value)[:1]
        return f"%{flags.replace('0', '')}{width or ''}s" % shown
    if kind == "s":
        return f"%{flags.replace('0', '')}{width or ''}{dotted}s" % text(following())
    if kind in "diouxX":
        whole = number(following())
        if math.isnan(whole) or math.isinf(whole):
            return str(whole)
        return f"{start}{'d' if kind in 'iu' else kind}" % int(whole)
    if kind in "eEfFgG":
        return f"{start}{kind}" % number(following())
    return found.group()
