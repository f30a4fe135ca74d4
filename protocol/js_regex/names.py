"""The parts of a pattern's grammar that look at the text as a whole: code units, groups, and their names."""

from __future__ import annotations

from typing import Final, NoReturn

from protocol.js_regex.syntax import RegexInvalid

HEX: Final = frozenset("0123456789abcdefABCDEF")


def as_units(text: str) -> str:
    """The text with one character for each UTF-16 code unit."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(data).cast("H")))


def count_groups(text: str) -> tuple[int, bool]:
    """How many groups there are, and whether any has a name: what `\\1` and `\\k` mean depends on it."""
    count = 0
    names = False
    at = 0
    in_class = False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(":
            if text[at + 1 : at + 2] != "?":
                count += 1
            elif text[at + 2 : at + 3] == "<" and text[at + 3 : at + 4] not in ("=", "!"):
                count += 1
                names = True
        at += 1
    return count, names


def read_name(text: str, start: int) -> tuple[str, int]:
    """A group's name, its escapes resolved, and the place after its `>`. Raises `RegexInvalid`."""
    at = start
    units: list[str] = []
    while True:
        char = text[at : at + 1]
        if not char:
            _fail(start)
        at += 1
        if char == ">":
            break
        if char == "\\":
            unit, at = _escape(text, at, start)
            units.append(unit)
        else:
            units.append(char)
    name = "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    bare = name.replace("$", "_")
    for joiner in ("\u200c", "\u200d"):
        bare = bare[:1] + bare[1:].replace(joiner, "_")
    if not bare.isidentifier():
        _fail(start)
    return name, at


def _escape(text: str, at: int, start: int) -> tuple[str, int]:
    if text[at : at + 1] != "u":
        _fail(start)
    if text[at + 1 : at + 2] == "{":
        end = text.find("}", at)
        digits = text[at + 2 : end] if end > 0 else ""
        if (
            not digits
            or not HEX.issuperset(digits)
            or len(digits.lstrip("0")) > 6
            or int(digits, 16) > 0x10FFFF
        ):
            _fail(start)
        return as_units(chr(int(digits, 16))), end + 1
    digits = text[at + 1 : at + 5]
    if len(digits) < 4 or not HEX.issuperset(digits):
        _fail(start)
    return chr(int(digits, 16)), at + 5


def _fail(at: int) -> NoReturn:
    raise RegexInvalid(f"invalid group name (at character {at})")
