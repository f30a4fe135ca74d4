"""`whippletree diff`: the first effect in which two recorded runs part, and what led there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cli.recordings.difference import Difference, first_difference
from cli.recordings.find import UsageError, read_one
from cli.recordings.show import difference_lines, say, title, unfinished_text
from gateway.recording.format import answer_document
from gateway.recording.reader import Answered, RecordedEffect, Recording, RecordingUnreadable

SAME: Final = 0
DIFFERENT: Final = 1
UNUSABLE: Final = 2

_NOT_COMPARED: Final = ("manifestHash",)
"""With another manifest it differs everywhere; the manifests themselves are compared."""


def run_diff(one: Path, other: Path) -> int:
    """Prints where two recordings part; the exit code: 0 they don't, 1 they do, 2 one can't be read."""
    try:
        first, second = _Side(read_one(one)), _Side(read_one(other))
    except (UsageError, RecordingUnreadable) as error:
        say(str(error), file=sys.stderr)
        return UNUSABLE
    say(f"A  {title(first.recording)}")
    say(f"B  {title(second.recording)}")
    for name, side in (("A", first), ("B", second)):
        unfinished = unfinished_text(side.recording)
        if unfinished is not None:
            say(f"{name} has no end: {unfinished}")
    if first.ids and second.ids:
        different_ids = {name for name in first.ids if first.ids[name] != second.ids.get(name)}
        first.rename(different_ids)
        second.rename(different_ids)
    lines, code = _compare(first, second)
    for line in lines:
        say(line)
    return code


class _Side:
    """One of the two recordings."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.effects = recording.effects()
        checkpoint = recording.checkpoint
        named = {"session": checkpoint.get("sessionId"), "turn": checkpoint.get("turnId")}
        self.ids = {name: value for name, value in named.items() if isinstance(value, str) and value}
        self._names: list[tuple[str, str]] = []
        self.answers: dict[str, Mapping[str, Any]] = {
            known.effect_id: {"status": "completed", "outcome": dict(known.outcome)}
            for known in recording.segment().outcomes.values()
        }
        for moment in recording.moments:
            if isinstance(moment.told, Answered):
                self.answers[moment.told.effect_id] = answer_document(moment.told.answer)

    def rename(self, names: set[str]) -> None:
        """From now on these ids read alike on both sides, wherever they stand in a text."""
        pairs = [(self.ids[name], f"<{name}>") for name in names if name in self.ids]
        self._names = sorted(pairs, key=lambda pair: -len(pair[0]))

    def neutral(self, value: Any) -> Any:
        """The value with the run's own ids replaced."""
        return _renamed(value, self._names) if self._names else value

    def start(self) -> dict[str, Any]:
        """What the run started from, as far as it shows in its effects."""
        checkpoint = self.recording.checkpoint
        return {
            "engine": self.recording.engine,
            "manifest": self.recording.input["manifest"],
            "input": checkpoint.get("input"),
            "info": checkpoint.get("info"),
            "sessionTools": self.recording.input.get("sessionTools"),
            "transcript": [entry.value() for entry in self.recording.transcript],
        }

    def end(self) -> Any:
        """How it ended."""
        end = self.recording.end
        return None if end is None else {"method": end.method, "params": end.params}


def _compare(one: _Side, other: _Side) -> tuple[list[str], int]:
    start = first_difference(one.neutral(one.start()), other.neutral(other.start()))
    lines = [] if start is None else ["They start from something else:", *_shown(start)]
    for number, (a, b) in enumerate(zip(one.effects, other.effects, strict=False), 1):
        found = first_difference(one.neutral(a.document), other.neutral(b.document), _NOT_COMPARED)
        if found is not None:
            lines += list(_parted(number, a, b, found))
            lines += list(_cause(one, other, number - 1))
            return lines, DIFFERENT
    shared = min(len(one.effects), len(other.effects))
    if len(one.effects) != len(other.effects):
        longer, name = (one, "A") if len(one.effects) > shared else (other, "B")
        effect = longer.effects[shared]
        lines.append(
            f"They part at effect {shared + 1}: only {name} asks for {effect.kind} {effect.effect_id}."
        )
        lines += list(_cause(one, other, shared))
        return lines, DIFFERENT
    end = first_difference(one.neutral(one.end()), other.neutral(other.end()))
    if end is not None:
        lines += [f"They ask for the same {shared} effects and end differently:", *_shown(end)]
        lines += list(_cause(one, other, shared))
        return lines, DIFFERENT
    lines.append(f"They ask for the same {shared} effects and end the same.")
    return lines, SAME


def _parted(number: int, a: RecordedEffect, b: RecordedEffect, found: Difference) -> Iterator[str]:
    yield f"They part at effect {number}:"
    if a.effect_id == b.effect_id:
        yield f"      {a.kind} {a.effect_id}"
    else:
        yield f"   A  {a.kind} {a.effect_id}"
        yield f"   B  {b.kind} {b.effect_id}"
    yield from _shown(found)


def _cause(one: _Side, other: _Side, until: int) -> Iterator[str]:
    """The first outcome before that point that differs: what most likely led there."""
    for number in range(until):
        a, b = one.effects[number], other.effects[number]
        mine, theirs = one.answers.get(a.effect_id), other.answers.get(b.effect_id)
        if mine is None or theirs is None:
            continue
        found = first_difference(one.neutral(mine), other.neutral(theirs))
        if found is not None:
            yield f"Before that, the answers to effect {number + 1} differ ({a.kind} {a.effect_id}):"
            yield from _shown(found)
            return


def _shown(found: Difference) -> list[str]:
    return difference_lines(found, "A", "B")


def _renamed(value: Any, names: list[tuple[str, str]]) -> Any:
    """A copy with texts replaced; walks without recursion, for documents may nest deep."""
    holder: list[Any] = [value]
    left: list[tuple[Any, Any]] = [(holder, 0)]
    while left:
        container, key = left.pop()
        item = container[key]
        if isinstance(item, str):
            for text, name in names:
                item = item.replace(text, name)
            container[key] = item
        elif isinstance(item, Mapping):
            copy: Any = {_renamed(name, names): member for name, member in item.items()}
            container[key] = copy
            left.extend((copy, name) for name in copy)
        elif isinstance(item, list | tuple):
            copy = list(item)
            container[key] = copy
            left.extend((copy, index) for index in range(len(copy)))
    return holder[0]
