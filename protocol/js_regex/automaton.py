"""Whether a pattern matches, in time that grows with the text and never explodes.

A pattern without back references is a finite automaton. It runs over the text with all its states at once, and
what a set of states does at a kind of code unit is remembered, so that a step is one look-up. An assertion is a
bit of each place between two units; a lookaround is found for every place beforehand, by running its own
automaton over the whole text, backwards for a lookahead. Only whether there is a match is told, never where.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from protocol.js_regex.syntax import (
    UNBOUNDED,
    Choice,
    Edge,
    Look,
    OneOf,
    Repeat,
    Syntax,
)
from protocol.js_regex.syntax import Sequence as Parts
from protocol.js_regex.units import LINE_ENDS, WORD, Ranges, contains
from protocol.steps import Steps, run_steps

MAX_STATES: Final = 20_000
"""States of one automaton, repetitions written out."""
MAX_WORK: Final = 4_000_000
"""States that may be visited anew for one text: a few seconds. Steps that are remembered are free."""
MAX_REMEMBERED: Final = 50_000
"""States in remembered steps, for each automaton."""

Units: TypeAlias = Sequence[int]

_BEGIN, _END, _LINE_BEGIN, _LINE_END, _WORD_EDGE, _NO_WORD_EDGE = (1 << bit for bit in range(6))
_FIRST_LOOK: Final = 1 << 6
_KIND_BITS: Final = 18
"""More than the kinds of units need."""


class RegexTooCostly(Exception):
    """The pattern is too large, or would take too long on this text."""


class Budget:
    """What one match may still cost."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_WORK

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise RegexTooCostly("the pattern takes too long on this text")


class Program:
    """A pattern with its lookarounds. Raises `RegexTooCostly` where it has too many states."""

    def __init__(self, syntax: Syntax) -> None:
        builder = _Builder()
        self._main = run_steps(builder.automaton(syntax, backwards=False))
        self._looks = builder.looks

    def matches(self, units: Units) -> bool:
        """Whether the pattern matches somewhere in the text. Raises `RegexTooCostly`."""
        budget = Budget()
        if not self._looks and not self._main.needs_marks:
            return self._main.search(units, budget)
        budget.spend(len(units) * (1 + len(self._looks)) // 8)
        marks = _edge_marks(units)
        # Inner lookarounds come before those that hold them.
        for bit, (look, automaton) in self._looks.items():
            found = automaton.ends(units, marks, budget, backwards=look.ahead)
            for place, here in enumerate(found):
                if here != look.negative:
                    marks[place] |= bit
        return any(self._main.run(units, marks, budget, range(len(units) + 1)))


def _edge_marks(units: Units) -> list[int]:
    """The assertions that hold at each place, lookarounds apart."""
    traits: dict[int, tuple[bool, bool]] = {
        unit: (contains(WORD, unit), contains(LINE_ENDS, unit)) for unit in dict.fromkeys(units)
    }
    marks = []
    before_word, line_begins = False, True
    for unit in units:
        word, line_ends = traits[unit]
        mark = _WORD_EDGE if before_word != word else _NO_WORD_EDGE
        if line_begins:
            mark |= _LINE_BEGIN
        if line_ends:
            mark |= _LINE_END
        marks.append(mark)
        before_word, line_begins = word, line_ends
    last = (_WORD_EDGE if before_word else _NO_WORD_EDGE) | _LINE_END | _END
    marks.append(last | _LINE_BEGIN if line_begins else last)
    marks[0] |= _BEGIN
    return marks


class _Builder:
    """From syntax to states. A state is a set of units with one successor, or free moves under a condition."""

    def __init__(self) -> None:
        self.looks: dict[int, tuple[Look, Automaton]] = {}
        self._bits: dict[int, int] = {}

    def automaton(self, syntax: Syntax, *, backwards: bool) -> Steps[Automaton]:
        states = _States()
        accept = states.add()
        start = yield self._build(syntax, accept, states, backwards)
        return Automaton(states, start, accept)

    def _build(self, syntax: Syntax, after: int, states: _States, backwards: bool) -> Steps[int]:
        """The state from which the syntax leads to `after`."""
        if isinstance(syntax, OneOf):
            return states.add(ranges=syntax.ranges, following=after)
        if isinstance(syntax, Parts):
            for part in syntax.parts if backwards else reversed(syntax.parts):
                after = yield self._build(part, after, states, backwards)
            return after
        if isinstance(syntax, Choice):
            moves = []
            for option in syntax.options:
                moves.append((0, (yield self._build(option, after, states, backwards))))
            return states.add(moves=moves)
        if isinstance(syntax, Edge):
            return states.add(moves=[(_EDGES[syntax.kind, syntax.multiline], after)])
        if isinstance(syntax, Look):
            return states.add(moves=[((yield self._look(syntax)), after)])
        if isinstance(syntax, Repeat):
            return (yield from self._repeat(syntax, after, states, backwards))
        raise RegexTooCostly("a back reference has no automaton")

    def _repeat(self, repeat: Repeat, after: int, states: _States, backwards: bool) -> Steps[int]:
        if repeat.most == UNBOUNDED:
            entry = states.add()
            body = yield self._build(repeat.part, entry, states, backwards)
            states.moves[entry] = ((0, body), (0, after))
        else:
            entry = after
            for _ in range(repeat.most - repeat.least):
                body = yield self._build(repeat.part, entry, states, backwards)
                if body == entry:
                    break
                entry = states.add(moves=[(0, body), (0, after)])
        for _ in range(repeat.least):
            body = yield self._build(repeat.part, entry, states, backwards)
            if body == entry:
                break
            entry = body
        return entry

    def _look(self, look: Look) -> Steps[int]:
        """The bit of a lookaround."""
        bit = self._bits.get(id(look))
        if bit is None:
            automaton = yield self.automaton(look.part, backwards=look.ahead)
            bit = self._bits[id(look)] = _FIRST_LOOK << len(self.looks)
            self.looks[bit] = (look, automaton)
        return bit


_EDGES: Final = {
    ("^", False): _BEGIN,
    ("$", False): _END,
    ("^", True): _LINE_BEGIN,
    ("$", True): _LINE_END,
    ("b", False): _WORD_EDGE,
    ("B", False): _NO_WORD_EDGE,
}


Moves: TypeAlias = tuple[tuple[int, int], ...]
"""Conditions and where they lead; condition 0 always holds."""


class _States:
    __slots__ = ("following", "moves", "ranges")

    def __init__(self) -> None:
        self.ranges: list[Ranges | None] = []
        self.following: list[int] = []
        self.moves: list[Moves] = []

    def add(
        self, ranges: Ranges | None = None, following: int = 0, moves: Iterable[tuple[int, int]] = ()
    ) -> int:
        if len(self.moves) >= MAX_STATES:
            raise RegexTooCostly("the pattern is too large")
        self.ranges.append(ranges)
        self.following.append(following)
        self.moves.append(tuple(moves))
        return len(self.moves) - 1


class _Place:
    """A set of states between two units, under one mark."""

    __slots__ = ("accepts", "reading", "steps")

    def __init__(self, reading: tuple[int, ...], accepts: bool) -> None:
        self.reading = reading
        """Those that wait for a unit."""
        self.accepts = accepts
        self.steps: dict[int, _Place] = {}
        """By the kind of the next unit and the mark after it."""


class Automaton:
    """The states of a pattern or of one lookaround."""

    def __init__(self, states: _States, start: int, accept: int) -> None:
        self._states = states
        self._start = start
        self._accept = accept
        self._relevant = 0
        for moves in states.moves:
            for condition, _ in moves:
                self._relevant |= condition
        self.needs_marks = bool(self._relevant & ~(_BEGIN | _END))
        cuts = {0}
        for ranges in states.ranges:
            for low, high in ranges or ():
                cuts.update((low, high + 1))
        self._cuts = sorted(cuts)
        self._kinds: dict[int, int] = {}
        """The kind of each unit seen so far: units of one kind are told apart by no state."""
        self._places: dict[tuple[tuple[int, ...], int], _Place] = {}
        self._remembered = 0

    def search(self, units: Units, budget: Budget) -> bool:
        """Whether a match ends anywhere, for an automaton that knows no marks but those of the two ends."""
        last = len(units) - 1
        end = _END & self._relevant
        here = self._place((), self._relevant & (_BEGIN | (_END if last < 0 else 0)), budget)
        kinds = self._kinds
        for at, unit in enumerate(units):
            if here.accepts:
                return True
            if not here.reading and at:
                # Nothing is under way and nothing can begin any more, except at the end.
                return self._place((), end, budget).accepts
            kind = kinds.get(unit)
            if kind is None:
                kind = kinds[unit] = bisect_right(self._cuts, unit) - 1
            mark = end if at == last else 0
            following = here.steps.get(kind | mark << _KIND_BITS)
            here = self._step(here, kind, mark, budget) if following is None else following
        return here.accepts

    def ends(self, units: Units, marks: list[int], budget: Budget, *, backwards: bool) -> list[bool]:
        """For each place whether a match ends there; backwards, whether one begins there."""
        places = range(len(units), -1, -1) if backwards else range(len(units) + 1)
        found = list(self.run(units, marks, budget, places))
        return found[::-1] if backwards else found

    def run(self, units: Units, marks: list[int], budget: Budget, places: range) -> Iterable[bool]:
        """Whether a match ends at each of these places, going through them in order."""
        relevant = self._relevant
        offset = 0 if places.step > 0 else -1
        here = self._place((), marks[places[0]] & relevant, budget)
        yield here.accepts
        for before, place in pairwise(places):
            unit = units[before + offset]
            kind = self._kinds.get(unit)
            if kind is None:
                kind = self._kinds[unit] = bisect_right(self._cuts, unit) - 1
            mark = marks[place] & relevant
            following = here.steps.get(kind | mark << _KIND_BITS)
            here = self._step(here, kind, mark, budget) if following is None else following
            yield here.accepts

    def _place(self, core: tuple[int, ...], mark: int, budget: Budget) -> _Place:
        """Where a set of states and the start lead without reading: a match may begin anywhere."""
        known = self._places.get((core, mark))
        if known is not None:
            return known
        states = self._states
        seen = {*core, self._start}
        left = [*core, self._start]
        while left:
            for condition, target in states.moves[left.pop()]:
                if condition & mark == condition and target not in seen:
                    seen.add(target)
                    left.append(target)
        budget.spend(len(seen) + 1)
        reading = tuple(sorted(state for state in seen if states.ranges[state] is not None))
        place = _Place(reading, self._accept in seen)
        self._remember(len(core) + len(reading) + 1)
        self._places[core, mark] = place
        return place

    def _step(self, here: _Place, kind: int, mark: int, budget: Budget) -> _Place:
        states = self._states
        budget.spend(len(here.reading) + 1)
        unit = self._cuts[kind]
        following = set()
        for state in here.reading:
            ranges = states.ranges[state]
            if ranges is not None and contains(ranges, unit):
                following.add(states.following[state])
        place = self._place(tuple(sorted(following)), mark, budget)
        self._remember(1)
        here.steps[kind | mark << _KIND_BITS] = place
        return place

    def _remember(self, size: int) -> None:
        self._remembered += size
        if self._remembered > MAX_REMEMBERED:
            # A place that is still in use must not keep the others alive.
            for place in self._places.values():
                place.steps.clear()
            self._places.clear()
            self._remembered = size
