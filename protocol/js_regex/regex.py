"""A compiled pattern, and the cache of them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import regress

from protocol.js_regex.automaton import Program, RegexTooCostly
from protocol.js_regex.parse import parse
from protocol.js_regex.syntax import (
    UNBOUNDED,
    BackReference,
    Choice,
    Look,
    Repeat,
    Sequence,
    Syntax,
)

CACHED_PATTERNS: Final = 512
MAX_CACHED_LENGTH: Final = 4_096
"""Longer patterns are compiled anew each time."""

MAX_BACKTRACKING: Final = 20_000_000
"""Steps that a pattern with back references may cost on a text, estimated: a fraction of a second."""

_LONG_REPEAT: Final = 8
"""Repetitions that count as unlimited when the cost of backtracking is estimated."""

_SURROGATE: Final = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_PRIVATE: Final = 0xF0000
"""Where the halves of surrogate pairs go in texts for `regress`, which takes only whole characters."""


class JsRegex:
    """`new RegExp(source)` and its `test`. Raises `RegexInvalid`; `str()` is how JavaScript prints it."""

    __slots__ = ("_back_references", "_matcher", "_syntax", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._syntax = parse(source)
        self._back_references = _has_back_references(self._syntax)
        self._matcher: Program | _Backtracking | None = None

    def test(self, text: str) -> bool:
        """Whether the pattern matches somewhere in the text. Raises `RegexTooCostly`."""
        matcher = self._matcher
        if matcher is None:
            kind = _Backtracking if self._back_references else Program
            matcher = self._matcher = kind(self._syntax)
        if isinstance(matcher, _Backtracking):
            return matcher.matches(self.source, text)
        data = text.encode("utf-16-le", "surrogatepass")
        return matcher.matches(memoryview(data).cast("H"))

    def __str__(self) -> str:
        return f"/{_printed(self.source)}/"


def js_regex(source: str) -> JsRegex:
    """A pattern, perhaps one that was compiled before. Raises `RegexInvalid`."""
    return _cached(source) if len(source) <= MAX_CACHED_LENGTH else JsRegex(source)


@lru_cache(CACHED_PATTERNS)
def _cached(source: str) -> JsRegex:
    return JsRegex(source)


class _Backtracking:
    """A pattern with back references. Its ranges and escapes do not reach halves of surrogate pairs."""

    __slots__ = ("_loops", "_nested", "_regex")

    def __init__(self, syntax: Syntax) -> None:
        self._loops, self._nested = _loops(syntax)
        self._regex: Any = None

    def matches(self, source: str, text: str) -> bool:
        length = len(text) + 1
        if self._nested:
            fits = length < 16 and 4**length <= MAX_BACKTRACKING
        else:
            fits = (
                length.bit_length() * (self._loops + 1) < 64
                and length ** (self._loops + 1) <= MAX_BACKTRACKING
            )
        if not fits:
            raise RegexTooCostly("a pattern with back references could take too long on this text")
        if self._regex is None:
            try:
                self._regex = regress.Regex(_halved(_TOKEN.sub(_plain_braces, source)))
            except regress.RegressError as error:
                raise RegexTooCostly(f"a pattern with back references can't be run: {error}") from None
        return self._regex.find(_halved(text)) is not None


_TOKEN: Final = re.compile(r"\(\?<[^=!>][^>]*>|\\k<[^>]*>|\\u(?=\{)|\\.", re.DOTALL)
"""Names, in which `\\u{…}` is an escape, and escapes."""


def _plain_braces(match: re.Match[str]) -> str:
    """`regress` reads `\\u{61}` as a code point; without flags it is the letter u, 61 times."""
    return "u" if match[0] == "\\u" else match[0]


def _halved(text: str) -> str:
    """The text with each half of a surrogate pair as a character of its own, as JavaScript counts them."""
    return _SURROGATE.sub(_halves, text)


def _halves(match: re.Match[str]) -> str:
    units = memoryview(match[0].encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(chr(_PRIVATE + unit - 0xD800) for unit in units)


def _children(syntax: Syntax) -> tuple[Syntax, ...]:
    if isinstance(syntax, Sequence):
        return syntax.parts
    if isinstance(syntax, Choice):
        return syntax.options
    return (syntax.part,) if isinstance(syntax, Repeat | Look) else ()


def _has_back_references(syntax: Syntax) -> bool:
    left = [syntax]
    while left:
        part = left.pop()
        if isinstance(part, BackReference):
            return True
        left.extend(_children(part))
    return False


def _loops(syntax: Syntax) -> tuple[int, bool]:
    """How many long repetitions there are, and whether one stands in another."""
    count = 0
    nested = False
    left = [(syntax, False)]
    while left:
        part, inside = left.pop()
        if isinstance(part, Repeat) and (part.most == UNBOUNDED or part.most > _LONG_REPEAT):
            count += 1
            nested = nested or inside
            inside = True
        left.extend((child, inside) for child in _children(part))
    return count, nested


def _printed(source: str) -> str:
    """The source as `RegExp.prototype.toString` shows it: slashes outside classes and line ends escaped."""
    if not source:
        return "(?:)"
    printed = []
    in_class = False
    escaped = False
    for char in source:
        if char in _LINE_ENDS:
            printed.append(_LINE_ENDS[char][1:] if escaped else _LINE_ENDS[char])
            escaped = False
            continue
        if not escaped:
            if char == "/" and not in_class:
                printed.append("\\")
            elif char == "[":
                in_class = True
            elif char == "]":
                in_class = False
        printed.append(char)
        escaped = char == "\\" and not escaped
    return "".join(printed)


_LINE_ENDS: Final = {"\n": "\\n", "\r": "\\r", "\u2028": "\\u2028", "\u2029": "\\u2029"}
