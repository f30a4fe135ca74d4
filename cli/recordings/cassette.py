"""A recording as a cassette: runs an agent on it and answers from it, or says what is not on it.

The agent may be another one and may get another message, as long as it asks for the same effects. Of an
effect everything counts but the manifest's hash, or no change of an agent could ever be tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cli.recordings.difference import Difference, first_difference
from cli.recordings.driven import Asked, DrivenEngine, End
from cli.recordings.replaying import NotReplayable, driven_engine
from cli.recordings.scripted import Script, play, script_of, with_known_outcomes
from gateway.engine.contract import AbortedEffect
from gateway.recording.reader import RecordedEffect, Recording
from protocol.canonical import manifest_hash

_NOT_COMPARED = ("manifestHash",)


@dataclass(frozen=True, slots=True)
class Miss:
    """An effect that the cassette can't answer."""

    asked: Asked
    sentence: str
    difference: Difference | None = None

    def text(self) -> str:
        """All of it, in lines."""
        lines = [f"The recording does not fit effect {self.asked.effect_id}: {self.sentence}."]
        return "\n".join([*lines, *(self.difference.lines() if self.difference is not None else ())])


class _Missed(Exception):
    def __init__(self, miss: Miss) -> None:
        super().__init__(miss.sentence)
        self.miss = miss


class Cassette:
    """Recordings of one segment: one run, or the runs that carried it on after it had to wait."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        """Raises NotReplayable for recordings of different segments."""
        self._first = recordings[0]
        places = {_place(recording) for recording in recordings}
        if len(places) > 1:
            raise NotReplayable("The recordings are of several segments or turns; serve one at a time.")
        self._effects: dict[str, RecordedEffect] = {}
        for recording in recordings:
            self._effects |= {effect.effect_id: effect for effect in recording.effects()}
        self._script = _answers_only(recordings)

    @property
    def agent_id(self) -> str:
        """The recorded agent's id."""
        return str(self._first.input["manifest"].get("id"))

    @property
    def message(self) -> Any:
        """The recorded input of the turn."""
        return self._first.checkpoint.get("input")

    def run(self, changes: Mapping[str, Any], seen: Callable[[int, Asked], None]) -> End | Miss:
        """Runs the agent; `changes` may hold another `manifest` and another `input`.

        `seen` is told every effect that fits, with its number. Raises NotReplayable.
        """
        driven = self._driven(changes)

        numbers = itertools.count(1)

        def check(asked: Asked) -> None:
            miss = self._miss(asked)
            if miss is not None:
                raise _Missed(miss)
            seen(next(numbers), asked)

        try:
            played = play(driven, self._script, seen=check)
        except _Missed as missed:
            return missed.miss
        if driven.end is None:
            asked = played.missing[0] if played.missing else driven.asked[-1]
            return Miss(asked, "the recording goes no further")
        if driven.end.fault is not None:
            raise NotReplayable(f"The engine failed: {driven.end.fault}")
        return driven.end

    def _driven(self, changes: Mapping[str, Any]) -> DrivenEngine:
        recorded = self._first
        if "manifest" not in changes and "input" not in changes:
            given_input: Mapping[str, Any] = recorded.input
            known_hash = recorded.manifest_hash
        else:
            given_input, known_hash = _changed(recorded, changes)
        # Outcomes of the start are answers like all others: they were given for the recorded manifest.
        given = replace(recorded, input={**given_input, "outcomes": []}, manifest_hash=known_hash)
        return driven_engine(given)

    def _miss(self, asked: Asked) -> Miss | None:
        recorded = self._effects.get(asked.effect_id)
        if recorded is None:
            return Miss(asked, "it is not in the recording")
        difference = first_difference(recorded.document, asked.document(), _NOT_COMPARED)
        if difference is not None:
            return Miss(asked, "it is another request", difference)
        if asked.effect_id not in self._script.answers:
            return Miss(asked, "it has no outcome in the recording")
        return None


def _place(recording: Recording) -> tuple[Any, Any, Any]:
    checkpoint = recording.checkpoint
    return checkpoint.get("sessionId"), checkpoint.get("turnId"), checkpoint.get("segment")


def _answers_only(recordings: Sequence[Recording]) -> Script:
    """The outcomes of all recordings. Whatever cut a run short is no part of a cassette."""
    script = script_of(recordings)
    script.aborts.clear()
    for name, scripted in list(script.answers.items()):
        if isinstance(scripted.answer, AbortedEffect):
            del script.answers[name]
    with_known_outcomes(script, recordings[0])
    return script


def _changed(recorded: Recording, changes: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """The start with another manifest or input, and the hash to take for the manifest (None: its own)."""
    checkpoint = dict(recorded.checkpoint)
    manifest, known_hash = recorded.input["manifest"], recorded.manifest_hash
    if "input" in changes:
        checkpoint["input"] = changes["input"]
    if "manifest" in changes:
        manifest, known_hash = changes["manifest"], None
        own = manifest_hash(manifest)
        checkpoint["manifestHash"] = own
        if isinstance(checkpoint.get("state"), dict):
            checkpoint["state"] = {**checkpoint["state"], "manifestHash": own}
    return {**recorded.input, "manifest": manifest, "checkpoint": checkpoint}, known_hash
