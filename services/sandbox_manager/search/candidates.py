"""Which patterns ripgrep may look for candidates by, and as what. No I/O.

ripgrep never decides what matches: it names files in which GNU grep may find a line, and GNU grep alone prints
lines. So its pattern has to match wherever GNU grep's does, and may match more. That is proven part by part:
every atom that is taken here stands for at least the texts that it stands for in GNU grep, and what joins
atoms (one after the other, alternatives, groups, repetitions) keeps that. Anchors are left out, which only
adds matches. A pattern with anything else has no candidates, and one that GNU grep would refuse isn't taken.
"""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 1000
MOST_REPETITIONS: Final = 100
MOST_DEPTH: Final = 50
_PLAIN_PUNCTUATION: Final = frozenset("!\"#%&',-/:;<=>@_`~ \t")
_ESCAPED: Final = frozenset(".[]*+?{}()|^$\\/-")
_ANY: Final = r"(?:(?-u:[^\n]){1,4})"
_OTHER: Final = r"(?:(?-u:[\x80-\xff]){1,4})"
"""A character beyond ASCII, or a byte that is none."""
_CLASSES: Final = {
    "alnum": ("0-9A-Za-z", True),
    "alpha": ("A-Za-z", True),
    "blank": (r" \t", True),
    "digit": ("0-9", False),
    "lower": ("a-z", True),
    "punct": (r"!-/:-@\[-`{-~", True),
    "space": (r" \t\x0b\x0c\r", True),
    "upper": ("A-Z", True),
    "xdigit": ("0-9A-Fa-f", False),
}
"""What each holds of ASCII, and whether it holds more."""


class _NotProven(Exception):
    pass


def candidate_pattern(pattern: str, ignore_case: bool) -> str | None:
    """A pattern for ripgrep that matches in every file in which GNU grep's `-E` finds a line; None if unsure.

    `pattern` is a list of patterns, one a line, as for grep.
    """
    if len(pattern) > MOST_CHARACTERS:
        return None
    try:
        parts = [_Parser(line, ignore_case).parse() for line in pattern.split("\n")]
    except _NotProven:
        return None
    joined = "|".join(f"(?:{part})" for part in parts)
    return f"(?i:{joined})" if ignore_case else joined


class _Parser:
    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._ignore_case = ignore_case

    def parse(self) -> str:
        """The whole pattern. Raises _NotProven."""
        source, may_be_empty = self._alternatives()
        # One that matches everywhere has every file as a candidate.
        if self._at < len(self._text) or may_be_empty:
            raise _NotProven
        return source

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise _NotProven
        self._at += 1
        return character

    def _alternatives(self) -> tuple[str, bool]:
        branches = [self._branch()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._branch())
        return "|".join(source for source, _ in branches), any(empty for _, empty in branches)

    def _branch(self) -> tuple[str, bool]:
        parts: list[str] = []
        all_empty, first = True, True
        while (character := self._peek()) and character not in "|)":
            if character in "^$":
                # Where an anchor stands makes it one or not; at the ends it always is.
                if not (
                    first if character == "^" else self._text[self._at + 1 : self._at + 2] in {"", "|", ")"}
                ):
                    raise _NotProven
                self._at += 1
                first = False
                if self._peek() in {"*", "+", "?", "{"}:
                    raise _NotProven
                continue
            source, may_be_empty = self._repeated(*self._atom())
            parts.append(source)
            all_empty, first = all_empty and may_be_empty, False
        return "".join(parts), all_empty

    def _atom(self) -> tuple[str, bool]:
        character = self._next()
        if character == "(":
            self._depth += 1
            if self._depth > MOST_DEPTH:
                raise _NotProven
            source, may_be_empty = self._alternatives()
            if self._next() != ")" or not source:
                raise _NotProven
            self._depth -= 1
            return f"(?:{source})", may_be_empty
        if character == ".":
            return _ANY, False
        if character == "[":
            return self._bracket(), False
        if character == "\\":
            character = self._next()
            if character not in _ESCAPED:
                raise _NotProven
            return _literal(character), False
        return self._character(character), False

    def _character(self, character: str) -> str:
        if character.isascii():
            if not (character.isalnum() or character in _PLAIN_PUNCTUATION):
                raise _NotProven
            return _literal(character)
        if self._ignore_case or not character.isprintable():
            raise _NotProven
        return character

    def _repeated(self, source: str, may_be_empty: bool) -> tuple[str, bool]:
        character = self._peek()
        if character and character in "*+?":
            self._at += 1
            source, may_be_empty = f"(?:{source}){character}", may_be_empty or character != "+"
        elif character == "{":
            self._at += 1
            low, high = self._bounds()
            source = f"(?:{source}){{{low},{'' if high is None else high}}}"
            may_be_empty = may_be_empty or low == 0
        if self._peek() in {"*", "+", "?", "{"}:
            raise _NotProven
        return source, may_be_empty

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low_text, comma, high_text = self._text[self._at : max(end, self._at)].partition(",")
        numbers = [text for text in (low_text, high_text) if text]
        if end < 0 or not low_text or not all(text.isascii() and text.isdigit() for text in numbers):
            raise _NotProven
        self._at = end + 1
        low = int(low_text)
        high = low if not comma else int(high_text) if high_text else None
        if max(low, high or 0) > MOST_REPETITIONS or (high is not None and (high < low or high == 0)):
            raise _NotProven
        return low, high

    def _bracket(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        ascii_part, more = "", False
        first = True
        while True:
            character = self._next()
            if character == "]" and not first:
                break
            first = False
            if character == "[":
                if self._peek() != ":":
                    raise _NotProven
                part, wider = self._named_class()
            elif character.isascii() and (character.isalnum() or character in " _.,:;/@#%&!"):
                part, wider = self._range(character)
            else:
                raise _NotProven
            ascii_part, more = ascii_part + part, more or wider
        if negated:
            return _ANY
        return f"(?:[{ascii_part}]|{_OTHER})" if more or self._ignore_case else f"[{ascii_part}]"

    def _named_class(self) -> tuple[str, bool]:
        end = self._text.find(":]", self._at)
        found = _CLASSES.get(self._text[self._at + 1 : max(end, self._at + 1)])
        if found is None:
            raise _NotProven
        self._at = end + 2
        ascii_part, more = found
        if self._ignore_case:
            ascii_part += "A-Za-z"
        return ascii_part, more

    def _range(self, start: str) -> tuple[str, bool]:
        if self._peek() != "-":
            return _in_class(start), False
        end = self._text[self._at + 1 : self._at + 2]
        same_kind = any(
            start in kind and end in kind and start <= end
            for kind in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        )
        if not end or not same_kind or self._text[self._at + 2 : self._at + 3] == "-":
            raise _NotProven
        self._at += 2
        return f"{start}-{end}", False


def _literal(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"


def _in_class(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"
