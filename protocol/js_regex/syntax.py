"""What a parsed pattern is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from protocol.js_regex.units import Ranges

UNBOUNDED: Final = -1
"""The `most` of a repetition without an upper limit."""


class RegexInvalid(ValueError):
    """The pattern is no regular expression in JavaScript."""


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """One code unit of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Between `least` and `most` times; whether greedy does not matter to whether a text matches."""

    part: Syntax
    least: int
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """An assertion about two neighbours: `^`, `$`, `b`, `B`; `multiline` for the first two."""

    kind: str
    multiline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A lookahead or a lookbehind."""

    part: Syntax
    ahead: bool
    negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class BackReference:
    """What a group matched; no finite automaton can tell."""


Syntax: TypeAlias = OneOf | Sequence | Choice | Repeat | Edge | Look | BackReference
