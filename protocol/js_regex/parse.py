"""The grammar of JavaScript patterns without flags, with the liberties of ECMAScript's annex B.

As the peer's runtime has it: named groups (one name may come again in another alternative), modifier groups
`(?i:…)`, lookbehind; no quantifier after `^`, `$`, `\\b`, `\\B` and lookbehind; `\\p{L}` and `\\Z` are letters.
The text is taken as UTF-16 code units, and so a character beyond U+FFFF is two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

from protocol.js_regex.names import HEX, as_units, count_groups, read_name
from protocol.js_regex.syntax import (
    UNBOUNDED,
    BackReference,
    Choice,
    Edge,
    Look,
    OneOf,
    RegexInvalid,
    Repeat,
    Sequence,
    Syntax,
)
from protocol.js_regex.units import (
    CLASSES,
    EVERYTHING,
    NO_LINE_END,
    Ranges,
    inverted,
    ranges_of,
    without_case,
)

MAX_GROUPS_INSIDE: Final = 3_000
"""How deep groups may nest; the peer's runtime gives up at some thousand as well."""

_CONTROL: Final = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_MANY: Final = 2**31
"""Stands for every larger number in a quantifier or a reference."""
_DIGITS: Final = frozenset("0123456789")
_OCTAL: Final = frozenset("01234567")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def parse(pattern: str) -> Syntax:
    """The syntax of a pattern. Raises `RegexInvalid`. Takes linear time and no Python stack."""
    return _Parser(pattern).parse()


@dataclass(slots=True)
class _Group:
    """A group that is still open."""

    opened: str
    ignore_case: bool
    multiline: bool
    dot_all: bool
    options: list[Syntax] = field(default_factory=list)
    terms: list[Syntax] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names in the alternatives that are done."""
    own_names: set[str] = field(default_factory=set)
    """Names in the alternative that is being read."""

    def end_option(self) -> None:
        self.options.append(self.terms[0] if len(self.terms) == 1 else Sequence(tuple(self.terms)))
        self.terms = []
        self.names |= self.own_names
        self.own_names = set()

    def syntax(self) -> Syntax:
        return self.options[0] if len(self.options) == 1 else Choice(tuple(self.options))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = as_units(pattern)
        self.at = 0
        self.groups, self.has_names = count_groups(self.text)
        self.references: set[str] = set()
        self.open: list[_Group] = [_Group("", False, False, False)]
        self.letters: dict[tuple[int, bool], OneOf] = {}

    def parse(self) -> Syntax:
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            group = self.open[-1]
            if char == "|":
                self.at += 1
                group.end_option()
            elif char == "(":
                self._open_group()
            elif char == ")":
                if len(self.open) == 1:
                    self._fail("unmatched ')'")
                self.at += 1
                self._close_group()
            else:
                self._term(group, char)
        if len(self.open) > 1:
            self._fail("a group is not closed")
        root = self.open[0]
        root.end_option()
        unknown = self.references - root.names
        if unknown:
            self._fail("a reference to a group that does not exist")
        return root.syntax()

    def _fail(self, what: str) -> NoReturn:
        raise RegexInvalid(f"{what} (at character {self.at})")

    def _term(self, group: _Group, char: str) -> None:
        if char in "^$":
            self.at += 1
            group.terms.append(Edge(char, group.multiline))
            self._no_quantifier()
        elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ("b", "B"):
            group.terms.append(Edge(self.text[self.at + 1]))
            self.at += 2
            self._no_quantifier()
        elif char in "*+?" or (char == "{" and self._braces() is not None):
            self._fail("nothing to repeat")
        else:
            atom = self._atom(group, char)
            group.terms.append(self._quantified(atom))

    def _atom(self, group: _Group, char: str) -> Syntax:
        if char == ".":
            self.at += 1
            return OneOf(EVERYTHING if group.dot_all else NO_LINE_END)
        if char == "[":
            return OneOf(self._class(group.ignore_case))
        if char == "\\":
            return self._escape(group)
        self.at += 1
        return self._one(ord(char), group)

    def _one(self, unit: int, group: _Group) -> OneOf:
        letter = self.letters.get((unit, group.ignore_case))
        if letter is None:
            letter = OneOf(_cased(((unit, unit),), group.ignore_case))
            self.letters[unit, group.ignore_case] = letter
        return letter

    # Quantifiers

    def _no_quantifier(self) -> None:
        char = self.text[self.at : self.at + 1]
        if char and (char in "*+?" or (char == "{" and self._braces() is not None)):
            self._fail("nothing to repeat")

    def _quantified(self, atom: Syntax) -> Syntax:
        char = self.text[self.at : self.at + 1]
        if char == "*":
            least, most = 0, UNBOUNDED
            self.at += 1
        elif char == "+":
            least, most = 1, UNBOUNDED
            self.at += 1
        elif char == "?":
            least, most = 0, 1
            self.at += 1
        elif char == "{" and (braces := self._braces()) is not None:
            least, most, self.at = braces
            if most != UNBOUNDED and least > most:
                self._fail("numbers out of order in a quantifier")
        else:
            return atom
        if self.text[self.at : self.at + 1] == "?":
            self.at += 1
        return Repeat(atom, least, most)

    def _braces(self) -> tuple[int, int, int] | None:
        """`{n}`, `{n,}` or `{n,m}` here, with the place after it; None where the brace is a letter."""
        least, at = self._number(self.at + 1)
        if least is None:
            return None
        if self.text[at : at + 1] == "}":
            return least, least, at + 1
        if self.text[at : at + 1] != ",":
            return None
        most, after = self._number(at + 1)
        if self.text[after : after + 1] != "}":
            return None
        return least, UNBOUNDED if most is None or most >= _MANY else most, after + 1

    def _number(self, at: int) -> tuple[int | None, int]:
        end = at
        while self.text[end : end + 1] in _DIGITS and end < len(self.text):
            end += 1
        digits = self.text[at:end].lstrip("0")
        if end == at:
            return None, end
        return (int(digits or "0") if len(digits) < 10 else _MANY), end

    # Groups

    def _open_group(self) -> None:
        outer = self.open[-1]
        if len(self.open) > MAX_GROUPS_INSIDE:
            self._fail("groups nest too deep")
        group = _Group("(", outer.ignore_case, outer.multiline, outer.dot_all)
        text = self.text
        self.at += 1
        if text[self.at : self.at + 1] == "?":
            for opened in ("?:", "?=", "?!", "?<=", "?<!"):
                if text.startswith(opened, self.at):
                    self.at += len(opened)
                    group.opened = opened
                    break
            else:
                if text.startswith("?<", self.at):
                    self.at += 2
                    name = self._name()
                    if name in outer.own_names:
                        self._fail("two groups have one name")
                    outer.own_names.add(name)
                else:
                    self.at += 1
                    self._modifiers(group)
        self.open.append(group)

    def _modifiers(self, group: _Group) -> None:
        seen: set[str] = set()
        add = True
        while True:
            char = self.text[self.at : self.at + 1]
            self.at += 1
            if char == "-" and add:
                add = False
            elif char == ":" and seen:
                break
            elif char and char in "ims" and char not in seen:
                seen.add(char)
                if char == "i":
                    group.ignore_case = add
                elif char == "m":
                    group.multiline = add
                else:
                    group.dot_all = add
            else:
                self._fail("invalid group")
        group.opened = "?:"

    def _close_group(self) -> None:
        group = self.open.pop()
        group.end_option()
        outer = self.open[-1]
        small, large = sorted((group.names, outer.own_names), key=len)
        if not small.isdisjoint(large):
            self._fail("two groups have one name")
        large |= small
        outer.own_names = large
        part = group.syntax()
        if group.opened in ("?=", "?!"):
            outer.terms.append(self._quantified(Look(part, ahead=True, negative=group.opened == "?!")))
        elif group.opened in ("?<=", "?<!"):
            outer.terms.append(Look(part, ahead=False, negative=group.opened == "?<!"))
            self._no_quantifier()
        else:
            outer.terms.append(self._quantified(part))

    def _name(self) -> str:
        name, self.at = read_name(self.text, self.at)
        return name

    # Escapes

    def _escape(self, group: _Group) -> Syntax:
        char = self.text[self.at + 1 : self.at + 2]
        if not char:
            self._fail("\\ at the end")
        if char in "123456789":
            value, end = self._number(self.at + 1)
            if value is not None and value <= self.groups:
                self.at = end
                return BackReference()
        if char == "k" and self.has_names:
            if self.text[self.at + 2 : self.at + 3] != "<":
                self._fail("invalid named reference")
            self.at += 3
            self.references.add(self._name())
            return BackReference()
        if char in CLASSES:
            self.at += 2
            ranges = CLASSES[char]
            return OneOf(ranges)
        return self._one(self._character(in_class=False), group)

    def _character(self, *, in_class: bool) -> int:
        """The code unit of an escape that stands for one."""
        text = self.text
        char = text[self.at + 1]
        self.at += 2
        if char in _CONTROL:
            return _CONTROL[char]
        if char in _OCTAL:
            return self._octal(char)
        if char == "c":
            letter = text[self.at : self.at + 1]
            if letter and (letter in _LETTERS or (in_class and (letter in _DIGITS or letter == "_"))):
                self.at += 1
                return ord(letter) % 32
            self.at -= 1
            return ord("\\")
        for marker, length in (("x", 2), ("u", 4)):
            if char == marker:
                digits = text[self.at : self.at + length]
                if len(digits) == length and HEX.issuperset(digits):
                    self.at += length
                    return int(digits, 16)
        return ord(char)

    def _octal(self, first: str) -> int:
        value = int(first)
        for limit in (0o37, 0o37):
            char = self.text[self.at : self.at + 1]
            if not char or char not in _OCTAL or value > limit:
                break
            value = value * 8 + int(char)
            self.at += 1
        return value

    # Character classes

    def _class(self, ignore_case: bool) -> Ranges:
        self.at += 1
        negative = self.text[self.at : self.at + 1] == "^"
        if negative:
            self.at += 1
        pairs: list[tuple[int, int]] = []
        while True:
            if self.at >= len(self.text):
                self._fail("a character class is not closed")
            if self.text[self.at] == "]":
                self.at += 1
                break
            low = self._class_atom()
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in (
                "",
                "]",
            ):
                self.at += 1
                high = self._class_atom()
                if isinstance(low, int) and isinstance(high, int):
                    if low > high:
                        self._fail("range out of order in a character class")
                    pairs.append((low, high))
                    continue
                # Next to a class the hyphen is one more member.
                pairs.extend([*_as_pairs(low), (0x2D, 0x2D), *_as_pairs(high)])
                continue
            pairs.extend(_as_pairs(low))
        ranges = _cased(ranges_of(pairs), ignore_case)
        return inverted(ranges) if negative else ranges

    def _class_atom(self) -> int | Ranges:
        char = self.text[self.at]
        if char != "\\":
            self.at += 1
            return ord(char)
        escaped = self.text[self.at + 1 : self.at + 2]
        if not escaped:
            self._fail("\\ at the end")
        if escaped in CLASSES:
            self.at += 2
            return CLASSES[escaped]
        if escaped == "b":
            self.at += 2
            return 0x08
        if escaped == "k" and self.has_names:
            self._fail("invalid escape")
        return self._character(in_class=True)


def _as_pairs(atom: int | Ranges) -> Ranges:
    return ((atom, atom),) if isinstance(atom, int) else atom


def _cased(ranges: Ranges, ignore_case: bool) -> Ranges:
    return without_case(ranges) if ignore_case else ranges
