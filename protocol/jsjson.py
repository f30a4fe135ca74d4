"""JSON as JavaScript reads and writes it (agent-engine 1, harness-api 7).

Reading keeps what the peers keep: numbers are IEEE doubles, lone surrogates stay, a repeated key keeps its
first place and its last value, and keys that are array indices come first. Writing is `JSON.stringify`
without spaces. Most documents are *plain*, and orjson may write those; whether one is plain is found out
from its text while it is read, so that no value is walked for it.
"""

from __future__ import annotations

import json
import json.decoder
import json.encoder
import json.scanner
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from protocol import jsonscan

JsonValue: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

MAX_DEPTH: Final = 900
"""Levels of nesting that are read and written; deeper documents are refused (harness-api 2.2)."""

MAX_SAFE: Final = 2**53
"""Integral numbers up to this size are `int`; every other number is a `float`."""

_RECURSIVE_DEPTH: Final = 200
"""Levels that the standard library's scanner may handle by recursion: well below Python's own limit."""

_MAX_INDEX: Final = 4294967294


class JsonError(ValueError):
    """The text is not JSON."""


class JsonDepthError(JsonError):
    """The text nests deeper than the caller allows."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A value and whether it is plain.

    Plain: no number that is a `float`, no lone surrogate, no key outside ASCII or written with an escape,
    and fewer than 250 levels. `plain=True` may be passed on when the value, or a part of it, is written.
    """

    value: JsonValue
    plain: bool


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


def is_index_key(key: str) -> bool:
    """Whether JavaScript takes the key for an array index: these come first in an object, ascending."""
    return (
        key.isascii()
        and key.isdigit()
        and len(key) <= 10
        and (key[0] != "0" or key == "0")
        and int(key) <= _MAX_INDEX
    )


def js_order(members: dict[str, Any]) -> dict[str, Any]:
    """The members in the order a JavaScript object has them; the same object when nothing moves."""
    if not members or min(members) >= ":":
        return members  # the colon follows the digits
    indices = [key for key in members if key[:1].isdigit() and is_index_key(key)]
    if not indices:
        return members
    indices.sort(key=int)
    if list(members)[: len(indices)] == indices:
        return members
    ordered = {key: members[key] for key in indices}
    for key, value in members.items():
        ordered.setdefault(key, value)
    return ordered


# Reading


def parse(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Parsed:
    """Reads one JSON text.

    Raises JsonDepthError for more than `max_depth` levels (also when the text breaks off inside them) and
    JsonError for everything else that is not JSON: a byte order mark, bytes that are not UTF-8, `NaN`.
    """
    text, scan = _prepare(text, min(max_depth, _RECURSIVE_DEPTH))
    if scan.depth > max_depth:
        raise JsonDepthError(f"nested deeper than {max_depth} levels")
    reader = _Reader(big_integers=scan.long_digits, index_keys=scan.index_keys)
    try:
        value = reader.read(text, scan.depth)
    except RecursionError:
        value = reader.read(text, None)
    plain = scan.plain and not reader.saw_float and scan.depth < jsonscan.PLAIN_DEPTH
    return Parsed(value, plain)


def loads(text: str | bytes) -> JsonValue:
    """The value of one JSON text; raises what `parse` raises."""
    return parse(text).value


def _prepare(text: str | bytes, depth_limit: int) -> tuple[str, jsonscan.Scan]:
    if isinstance(text, str):
        try:
            data = text.encode()
        except UnicodeEncodeError:
            # A raw half of a pair means the same as its escape, and the scanner joins escaped pairs.
            text = _SURROGATE.sub(_escape_surrogate, text)
            data = text.encode()
    else:
        data = bytes(text)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise JsonError("not UTF-8") from None
    return text, jsonscan.scan(data, depth_limit)


# Both are in the standard library's modules without being declared to type checkers.
_make_scanner: Callable[[object], Callable[[str, int], tuple[Any, int]]] = vars(json.scanner)["make_scanner"]
_scan_string: Callable[[str, int, bool], tuple[str, int]] = vars(json.decoder)["scanstring"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\n\r]*")


def _escape_surrogate(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _refuse_constant(name: str) -> JsonValue:
    raise JsonError(f"{name} is not JSON")


class _Reader:
    """The standard library's scanner with the hooks one document needs."""

    # The names are those that the scanner looks up on its context.
    strict = True
    object_hook = None
    parse_constant = staticmethod(_refuse_constant)

    def __init__(self, *, big_integers: bool, index_keys: bool) -> None:
        self.saw_float = False
        self.memo: dict[str, str] = {}
        self.parse_float = self._number
        self.parse_int: Callable[[str], int | float] = self._number if big_integers else int
        self.object_pairs_hook = _ordered_members if index_keys else None
        self._scan_once = _make_scanner(self)

    def _number(self, digits: str) -> int | float:
        number = float(digits)
        if number.is_integer() and abs(number) <= MAX_SAFE:
            return int(number)
        self.saw_float = True
        return number

    def read(self, text: str, depth: int | None) -> JsonValue:
        """The document; `depth` None reads all of it without recursion."""
        start = _skip_space(text, 0)
        try:
            if depth is not None and depth <= _RECURSIVE_DEPTH:
                value, end = self._scan_once(text, start)
            else:
                shallow = 0 if depth is None else depth - _RECURSIVE_DEPTH
                value, end = self._read_levels(text, start, shallow)
        except StopIteration:
            raise JsonError("a value is missing") from None
        except json.JSONDecodeError as error:
            raise JsonError(f"{error.msg} at character {error.pos}") from None
        end = _skip_space(text, end)
        if end != len(text):
            raise JsonError(f"more text after the value at character {end}")
        return value  # type: ignore[no-any-return]

    def _read_levels(self, text: str, at: int, levels: int) -> tuple[Any, int]:
        """Reads containers of the first `levels` levels here (0: of all levels), deeper ones by recursion."""
        stack: list[list[Any]] = []  # [items or members, key in waiting, is object]
        while True:
            char = text[at : at + 1]
            if char in ("{", "[") and (levels == 0 or len(stack) < levels):
                at = _skip_space(text, at + 1)
                is_object = char == "{"
                if text[at : at + 1] != ("}" if is_object else "]"):
                    frame: list[Any] = [[], None, is_object]
                    stack.append(frame)
                    if is_object:
                        at = self._read_key(text, at, frame)
                    continue
                value: Any = {} if is_object else []
                at += 1
            else:
                value, at = self._scan_once(text, at)
            while True:
                if not stack:
                    return value, at
                frame = stack[-1]
                items, key, is_object = frame
                items.append((key, value) if is_object else value)
                at = _skip_space(text, at)
                char = text[at : at + 1]
                if char == ",":
                    at = _skip_space(text, at + 1)
                    if is_object:
                        at = self._read_key(text, at, frame)
                    break
                if char != ("}" if is_object else "]"):
                    raise JsonError(f"a container does not end at character {at}")
                stack.pop()
                value = _ordered_members(items) if is_object else items
                at += 1

    def _read_key(self, text: str, at: int, frame: list[Any]) -> int:
        if text[at : at + 1] != '"':
            raise JsonError(f"a key is missing at character {at}")
        frame[1], at = _scan_string(text, at + 1, True)
        at = _skip_space(text, at)
        if text[at : at + 1] != ":":
            raise JsonError(f"a colon is missing at character {at}")
        return _skip_space(text, at + 1)


def _ordered_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return js_order(dict(pairs))


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


# Writing


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
    if plain:
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
        return _SURROGATE.sub(_escape_surrogate, joined).encode()


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
