"""JSON as JavaScript reads and writes it (agent-engine 1, harness-api 7).

Reading keeps what the peers keep: numbers are IEEE doubles, lone surrogates stay, a repeated key keeps its
first place and its last value, and keys that are array indices come first. Writing is `JSON.stringify`
without spaces. Most documents are *plain*, and orjson may write those; whether one is plain is found out
while it is read (`jsonread`), so that no value is walked for it again.
"""

from __future__ import annotations

import json.encoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import orjson

from protocol.jsonread import (
    MAX_DEPTH,
    MAX_SAFE,
    SURROGATE,
    JsonDepthError,
    JsonError,
    JsonValue,
    Parsed,
    escape_surrogate,
    is_index_key,
    is_plain,
    js_order,
    loads,
    parse,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_SAFE",
    "STRICT",
    "JsonDepthError",
    "JsonError",
    "JsonValue",
    "Parsed",
    "RawJson",
    "dumps",
    "dumps_bytes",
    "is_index_key",
    "js_members",
    "js_order",
    "loads",
    "parse",
    "stringify_number",
    "to_utf8",
    "write",
]


class RawJson:
    """JSON text that stands for a value and is written as it is."""

    __slots__ = ("text",)  # no dataclass: orjson would write its fields

    def __init__(self, text: str) -> None:
        self.text: Final = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawJson) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"RawJson({len(self.text)} characters)"


def stringify_number(number: int | float) -> str:
    """A number as ECMAScript prints it inside JSON: infinities and NaN as `null`."""
    if isinstance(number, int):
        if -MAX_SAFE <= number <= MAX_SAFE:
            return int.__repr__(number)
        try:
            number = float(number)
        except OverflowError:
            return "null"
    text = float.__repr__(number)
    if "e" not in text:
        if text.endswith(".0"):
            return "0" if text == "-0.0" else text[:-2]
        return "null" if text[-1] in "nf" else text  # nan, inf
    return _respell_exponent(text)


def _respell_exponent(text: str) -> str:
    mantissa, exponent = text.split("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = int(exponent) + 1  # digits before the decimal point
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def dumps(value: Any, *, plain: bool = False) -> str:
    """`JSON.stringify(value)`; a RawJson inside stands for itself.

    `plain` says that the value is plain (see Parsed) and that its objects already have JavaScript's key
    order, as everything `parse` returned has. Raises TypeError for what is not a JSON value.
    """
    return dumps_bytes(value, plain=plain).decode()


def dumps_bytes(value: Any, *, plain: bool = False) -> bytes:
    """`dumps` as UTF-8."""
    if plain or is_plain(value):
        try:
            return orjson.dumps(value, _fragment, STRICT)
        except orjson.JSONEncodeError:
            pass  # not as plain as it was said to be: a lone surrogate, a huge integer, too deep
    return to_utf8("".join(write(value, js_members)))


STRICT: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""What orjson must not write by itself."""


def _fragment(value: object) -> orjson.Fragment:
    return orjson.Fragment(value.text if isinstance(value, RawJson) else _refuse_type(value))


def to_utf8(text: str) -> bytes:
    """JSON text as UTF-8: halves of a pair that have met are joined, lone ones become escapes."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return SURROGATE.sub(escape_surrogate, joined).encode()


def js_members(members: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Members in JavaScript's own order."""
    return js_order(members).items()


_encode_basestring: Callable[[str], str] = json.encoder.encode_basestring
_SHORT: Final = 64
"""Characters from which on orjson writes a string faster."""


def _encode_string(text: str) -> str:
    if len(text) < _SHORT:
        return _encode_basestring(text)
    try:
        return orjson.dumps(text).decode()
    except orjson.JSONEncodeError:
        return _encode_basestring(text)  # a lone surrogate


_int_text = int.__repr__
_CONSTANTS: Final[dict[Any, str]] = {None: "null", True: "true", False: "false"}


def _refuse_type(value: object) -> str:
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def write(
    value: Any,
    members: Callable[[dict[str, Any]], Iterable[tuple[str, Any]]],
    other: Callable[[object], str] = _refuse_type,
) -> list[str]:
    """The pieces of a value's compact JSON text, with the members of each object as `members` gives them.

    `other` gives the text of anything that is not a JSON value. Works without recursion at any depth. Lone
    surrogates are still raw (`to_utf8` escapes them).
    """
    out: list[str] = []
    append = out.append
    stack: list[tuple[Iterator[Any], bool]] = []
    items: Iterator[Any] = iter((value,))
    is_object = False
    comma = ""
    while True:
        for item in items:
            if is_object:
                key, value = item
                append(f"{comma}{_encode_string(key)}:")
            else:
                value = item
                if comma:
                    append(",")
            comma = ","
            kind = type(value)
            if kind is str:
                append(_encode_string(value))
            elif kind is int:
                append(_int_text(value) if -MAX_SAFE <= value <= MAX_SAFE else stringify_number(value))
            elif kind is dict:
                append("{")
                stack.append((items, is_object))
                items, is_object, comma = iter(members(value)), True, ""
                break
            elif kind is list or kind is tuple:
                append("[")
                stack.append((items, is_object))
                items, is_object, comma = iter(value), False, ""
                break
            elif value is None or kind is bool:
                append(_CONSTANTS[value])
            elif kind is float:
                append(stringify_number(value))
            elif kind is RawJson:
                append(value.text)
            elif isinstance(value, str):
                append(_encode_string(value))
            elif isinstance(value, (int, float)):
                append(stringify_number(value))
            else:
                append(other(value))
        else:
            if not stack:
                return out
            append("}" if is_object else "]")
            items, is_object = stack.pop()
            comma = ","
