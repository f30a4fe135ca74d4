"""Reading JSON as JavaScript does (agent-engine 1, harness-api 7).

orjson reads a text, and one walk over what it made turns that into JavaScript's view: numbers become
doubles, array indices come first in an object, and what a writer must know is noted on the way. The few
texts that orjson refuses and JavaScript reads (halves of surrogate pairs, numbers beyond doubles, deeper
nesting) are read by the standard library's scanner, which also says what is wrong with a text that is not
JSON.
"""

from __future__ import annotations

import json
import json.decoder
import json.scanner
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from protocol.jsonscan import depth_of

JsonValue: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

MAX_DEPTH: Final = 900
"""Levels of nesting that are read and written; deeper documents are refused (harness-api 2.2)."""

MAX_SAFE: Final = 2**53
"""Integral numbers up to this size are `int`; every other number is a `float`."""

PLAIN_DEPTH: Final = 250
"""orjson writes at most 254 levels."""

_RECURSIVE_DEPTH: Final = 200
"""Levels that the standard library's scanner may handle by recursion: well below Python's own limit."""

_MAX_INDEX: Final = 4294967294


class JsonError(ValueError):
    """The text is not JSON."""


class JsonDepthError(JsonError):
    """The text nests deeper than the caller allows."""


class Parsed(msgspec.Struct, frozen=True):
    """A value and whether it is plain.

    Plain: no number that is a `float`, no lone surrogate, no key outside ASCII, and fewer than 250 levels.
    `plain=True` may be passed on when the value, or a part of it, is written.
    """

    value: JsonValue
    plain: bool


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


def parse(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Parsed:
    """Reads one JSON text.

    Raises JsonDepthError for more than `max_depth` levels (also when the text breaks off inside them) and
    JsonError for everything else that is not JSON: a byte order mark, bytes that are not UTF-8, `NaN`.
    """
    try:
        # orjson would leave a second copy, in UTF-8, inside a text that is not ASCII.
        value = orjson.loads(text if type(text) is not str or text.isascii() else text.encode())
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return Parsed(read_odd(text, max_depth), plain=False)
    kind = type(value)
    if kind is dict or kind is list:
        return Parsed(value, _walk(value, max_depth))
    if kind is int or kind is float:
        value = _double(value)
    return Parsed(value, type(value) is not float)


def loads(text: str | bytes) -> JsonValue:
    """The value of one JSON text; raises what `parse` raises."""
    return parse(text).value


def _double(number: int | float | str) -> int | float:
    """A number, or its digits, as a double; `int` where that is integral and safe."""
    double = float(number)
    return int(double) if double.is_integer() and abs(double) <= MAX_SAFE else double


def _walk(document: Any, max_depth: int) -> bool:
    """Makes a container that orjson read JavaScript's, in place, level by level; whether it is plain.

    Raises JsonDepthError.
    """
    plain = True
    names: dict[str, Any] = {}
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > max_depth:
            raise _too_deep(max_depth)
        below: list[Any] = []
        for container in level:
            members, numbers = container, False
            if type(container) is dict:
                names.update(container)
                members = container.values()
            for item in members:
                kind = type(item)
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is float or (kind is int and not -MAX_SAFE <= item <= MAX_SAFE):
                    numbers = True
            if numbers:
                plain &= _make_doubles(container)
        level = below
    if names:
        # The colon follows the digits.
        if min(names) < ":" and any("0" <= name[:1] <= "9" and is_index_key(name) for name in names):
            _reorder(document)
        plain = plain and "".join(names).isascii()
    return plain and depth < PLAIN_DEPTH


def is_plain(value: Any) -> bool:
    """Whether a value is plain (see Parsed) and its objects have JavaScript's order of keys.

    May say no without need. It does not look for lone surrogates, and a value of another kind than JSON's is
    left to whoever writes it: orjson refuses both.
    """
    names: dict[str, Any] = {}
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > PLAIN_DEPTH:
            return False
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                names.update(item)
                below.extend(item.values())
            elif kind is list or kind is tuple:
                below.extend(item)
            elif kind is int:
                if not -MAX_SAFE <= item <= MAX_SAFE:
                    return False
            elif kind is not str and item is not None and kind is not bool:
                return False
        level = below
    try:
        text = "".join(names)
    except TypeError:
        return False  # a key that is no text
    return not names or (min(names) >= ":" and text.isascii())


def _make_doubles(container: Any) -> bool:
    """Gives a container's own numbers their JavaScript form; whether no `float` is left."""
    plain = True
    for place, item in container.items() if type(container) is dict else enumerate(container):
        if type(item) is float or type(item) is int:
            number = container[place] = _double(item)
            plain = plain and type(number) is not float
    return plain


def _reorder(document: Any) -> None:
    """Gives every object JavaScript's order of keys, in place."""
    level = [document]
    while level:
        below: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                ordered = js_order(container)
                if ordered is not container:
                    container.clear()
                    container.update(ordered)
                items = container.values()
            below.extend(item for item in items if type(item) is dict or type(item) is list)
        level = below


def _too_deep(max_depth: int) -> JsonDepthError:
    return JsonDepthError(f"nested deeper than {max_depth} levels")


# What orjson refuses

# Both are in the standard library's modules without being declared to type checkers.
_make_scanner: Callable[[object], Callable[[str, int], tuple[Any, int]]] = vars(json.scanner)["make_scanner"]
_scan_string: Callable[[str, int, bool], tuple[str, int]] = vars(json.decoder)["scanstring"]

SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def escape_surrogate(match: re.Match[str]) -> str:
    """The escape of half of a surrogate pair."""
    return f"\\u{ord(match[0]):04x}"


def read_odd(text: str | bytes, max_depth: int = MAX_DEPTH) -> JsonValue:
    """The value of any JSON text, read without orjson: the same as `parse`, and slower.

    Raises what `parse` raises.
    """
    if isinstance(text, str):
        # A raw half of a pair means the same as its escape, and the scanner joins escaped pairs.
        text = SURROGATE.sub(escape_surrogate, text)
        data = text.encode()
    else:
        data = bytes(text)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise JsonError("not UTF-8") from None
    depth = depth_of(data)
    if depth > max_depth:
        raise _too_deep(max_depth)
    reader = _Reader()
    try:
        return reader.read(text, depth)
    except RecursionError:
        return reader.read(text, None)


def _refuse_constant(name: str) -> JsonValue:
    raise JsonError(f"{name} is not JSON")


def _ordered_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return js_order(dict(pairs))


class _Reader:
    """The standard library's scanner with JavaScript's numbers and order of keys."""

    # The names are those that the scanner looks up on its context.
    strict = True
    object_hook = None
    parse_constant = staticmethod(_refuse_constant)
    parse_float = staticmethod(_double)
    parse_int = staticmethod(_double)
    object_pairs_hook = staticmethod(_ordered_members)

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}
        self._scan_once = _make_scanner(self)

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


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
