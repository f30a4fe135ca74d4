"""Extended regular expressions as GNU grep 3.8 reads them in the locale C.UTF-8, on Python's engine.

Only whether a line matches is asked, never where, so POSIX' longest match makes no difference. Lines are
strings whose undecodable bytes are lone surrogates U+DC80 to U+DCFF; no expression matches one of those.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_REPETITIONS: Final = 32_767
_ANY: Final = r"[^\n\udc80-\udcff]"
_WORD: Final = r"[\w]"
_UNMATCHED_BRACKET: Final = "Unmatched [, [^, [:, [., or [="
_BAD_COLLATION: Final = "Invalid collation character"
_SPACES: Final = " \\t\\n\\v\\f\\r\\u1680\\u2000-\\u2006\\u2008-\\u200a\\u2028\\u2029\\u205f\\u3000"
_ANCHORS: Final = {
    "b": r"(?:\b)",
    "B": r"(?!\b)",
    "<": r"(?:\b(?=\w))",
    ">": r"(?:\b(?<=\w))",
    "`": r"(?:\A)",
    "'": r"(?:\Z)",
}


class BadPattern(Exception):
    """grep refuses the pattern; the text is what it says."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """A pattern list, and the warnings that grep prints about it."""

    expressions: tuple[re.Pattern[str], ...]
    warnings: tuple[str, ...]

    def matches(self, line: str) -> bool:
        """A line without its end matches one of the patterns."""
        return any(expression.search(line) is not None for expression in self.expressions)


def compile_patterns(patterns: str, ignore_case: bool) -> Matcher:
    """Reads a pattern list, one pattern a line. Raises BadPattern."""
    flags = re.IGNORECASE if ignore_case else 0
    expressions: list[re.Pattern[str]] = []
    warnings: list[str] = []
    for pattern in patterns.split("\n"):
        parser = _Parser(pattern, ignore_case)
        try:
            source = parser.parse()
            warnings += parser.warnings
            expressions.append(re.compile(source, flags))
        except (re.error, OverflowError, RecursionError):
            raise BadPattern("Regular expression too big") from None
    return Matcher(tuple(expressions), tuple(warnings))


class _Parser:
    """One pattern, from left to right."""

    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._groups = 0
        self._closed: set[int] = set()
        self._fresh = True  # nothing stands before that a repetition could be of
        self._ignore_case = ignore_case
        self._late: str | None = None  # what grep only finds wrong once the rest has been read
        self.warnings: list[str] = []

    def parse(self) -> str:
        """The same expression for Python's `re`."""
        if re.fullmatch(r"\[:[^]]*:\]", self._text):
            raise BadPattern("character class syntax is [[:space:]], not [:space:]")
        source = self._alternatives()
        if self._at < len(self._text):
            raise BadPattern("Unmatched ) or \\)")
        if self._late is not None:
            raise BadPattern(self._late)
        return source

    def _alternatives(self) -> str:
        branches = [self._branch()]
        while self._peek() == "|":
            self._at += 1
            self._fresh = True
            branches.append(self._branch())
        return "|".join(branches)

    def _branch(self) -> str:
        parts: list[str] = []
        while (character := self._peek()) and character != "|":
            if character == ")" and self._depth > 0:
                break
            atom = self._atom()
            parts.append(self._repeated(atom))
        return "".join(parts)

    def _repeated(self, atom: str) -> str:
        while (bounds := self._repetition()) is not None:
            atom = f"(?:{atom}){bounds}"
        return atom

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _repetition(self) -> str | None:
        """The repetition at this place as Python writes it, or None."""
        character = self._peek()
        if character and character in "*+?":
            self._warn_if_fresh(character)
            self._at += 1
            return character
        if character != "{":
            return None
        match = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}").match(self._text, self._at)
        if match is None or (not match[1] and not match[2]):
            return None
        low = int(match[1] or 0)
        high = (int(match[3]) if match[3] else None) if match[2] else low
        if high is not None and low > high:
            if self._fresh:
                return None
            self._wrong_late("Invalid content of \\{\\}")
            high = low
        self._warn_if_fresh("{...}")
        if low > MOST_REPETITIONS or (high or 0) > MOST_REPETITIONS:
            raise BadPattern("Regular expression too big")
        self._at = match.end()
        return f"{{{low},{'' if high is None else high}}}"

    def _wrong_late(self, what: str) -> None:
        self._late = self._late or what

    def _warn_if_fresh(self, what: str) -> None:
        if self._fresh:
            self.warnings.append(f"{what} at start of expression")

    def _atom(self) -> str:
        if self._fresh and self._at_repetition():
            return ""  # of nothing; the caller repeats it
        character = self._text[self._at]
        self._at += 1
        if character == "^":
            return r"(?:\A)"
        if character == "(":
            return self._group()
        if character == "$":
            return r"(?:\Z)"
        if character == "\\" and self._peek() in _ANCHORS:
            self._at += 1
            return _ANCHORS[self._text[self._at - 1]]
        self._fresh = False
        if character == ".":
            return _ANY
        if character == "[":
            return self._bracket()
        if character == "\\":
            return self._escape()
        return re.escape(character)

    def _at_repetition(self) -> bool:
        character = self._peek()
        if character in {"*", "+", "?"}:
            return True
        return (
            character == "{"
            and re.compile(r"\{([0-9]+|[0-9]*,[0-9]*)\}").match(self._text, self._at) is not None
        )

    def _group(self) -> str:
        self._groups += 1
        number = self._groups
        self._depth += 1
        self._fresh = True
        inner = self._alternatives()
        if self._peek() != ")":
            raise BadPattern("Unmatched ( or \\(")
        self._at += 1
        self._depth -= 1
        self._fresh = False
        self._closed.add(number)
        return f"({inner})"

    def _escape(self) -> str:
        character = self._peek()
        if not character:
            raise BadPattern("Trailing backslash")
        self._at += 1
        if character in "123456789":
            if int(character) not in self._closed:
                raise BadPattern("Invalid back reference")
            return f"(?:\\{character})"
        special = {
            "w": _WORD,
            "W": r"[^\w\n\udc80-\udcff]",
            "s": f"[{_SPACES}]",
            "S": f"[^{_SPACES}\\udc80-\\udcff]",
        }
        return special.get(character, re.escape(character))

    # Bracket expressions

    def _bracket(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        if not self._peek():
            raise BadPattern("Invalid regular expression")
        items: list[str] = []
        first = True
        while True:
            character = self._next_in_bracket()
            if character == "]" and not first:
                break
            first = False
            if character == "[" and self._peek() in {":", ".", "="}:
                kind = self._peek()
                named = self._named(kind)
                if kind == ":":
                    items.append(self._character_class(named))
                    continue
                character = self._collating(named)
            items.append(self._range_or_character(character))
        found = "|".join(items)
        if negated:
            return f"(?:(?!(?:{found})){_ANY})"
        return f"(?:{found})"

    def _next_in_bracket(self) -> str:
        character = self._peek()
        if not character:
            raise BadPattern(_UNMATCHED_BRACKET)
        self._at += 1
        return character

    def _named(self, kind: str) -> str:
        end = self._text.find(kind + "]", self._at + 1)
        if end < 0:
            raise BadPattern(_UNMATCHED_BRACKET)
        name = self._text[self._at + 1 : end]
        self._at = end + 2
        return name

    def _collating(self, name: str) -> str:
        if len(name) == 1 and name.isascii():
            return name
        self._wrong_late(_BAD_COLLATION)
        return "x"

    def _range_or_character(self, start: str) -> str:
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"]", ""}:
            return re.escape(start)
        self._at += 1
        end = self._next_in_bracket()
        if end == "[" and self._peek() in {":", ".", "="}:
            kind = self._peek()
            end = self._named(kind)
            if kind == ".":
                end = self._collating(end)
            else:
                raise BadPattern("Invalid range end")
        # A range is found wrong at once, what stands in it only later.
        chained = self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}
        if not (start.isascii() and end.isascii()):
            raise BadPattern(_BAD_COLLATION)
        if start > end or chained or len(end) != 1:
            raise BadPattern("Invalid range end")
        return f"[{re.escape(start)}-{re.escape(end)}]"

    def _character_class(self, name: str) -> str:
        if self._ignore_case and name in {"upper", "lower"}:
            name = "alpha"
        source = _class_source(name)
        if source is None:
            raise BadPattern("Invalid character class name")
        return source


@functools.cache
def _class_source(name: str) -> str | None:
    simple = {
        "alnum": r"[^\W_]",
        "alpha": r"[^\W0-9_]",
        "blank": "[ \\t\\u1680\\u2000-\\u2006\\u2008-\\u200a\\u205f\\u3000]",
        "cntrl": r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]",
        "digit": "[0-9]",
        "graph": f"[^{_SPACES}\\x00-\\x1f\\x7f\\x80-\\x9f\\udc80-\\udcff]",
        "print": r"[^\x00-\x1f\x7f\x80-\x9f\u2028\u2029\udc80-\udcff]",
        "punct": f"(?:[_]|[^\\w{_SPACES}\\x00-\\x1f\\x7f\\x80-\\x9f\\udc80-\\udcff])",
        "space": f"[{_SPACES}]",
        "xdigit": "[0-9A-Fa-f]",
    }
    if name in simple:
        return simple[name]
    if name == "upper":
        return _listed(str.isupper)
    if name == "lower":
        return _listed(str.islower)
    return None


def _listed(test: Callable[[str], bool]) -> str:
    """A class of every single character that passes a test, as ranges."""
    ranges: list[str] = []
    start: int | None = None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and test(chr(code))
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            ranges.append(f"{re.escape(chr(start))}-{re.escape(chr(code - 1))}")
            start = None
    return f"[{''.join(ranges)}]"
