"""A recorded run with other outcomes: what it asks for then, and who answers.

An effect whose request is the recorded one gets the recorded answer. Everything else is new: the sources are
asked for it, in order, and only once the outcome that was changed has been told. What the recorded run asked
for and never got an answer to may have happened, so no source is asked for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from cli.recordings.changes import Change
from cli.recordings.difference import Difference, shown
from cli.recordings.driven import Asked
from cli.recordings.find import UsageError
from cli.recordings.replaying import Drift, driven_engine, effect_drift
from cli.recordings.scripted import (
    Given,
    Played,
    Script,
    ScriptedAnswer,
    play,
    script_of,
    with_known_outcomes,
)
from cli.recordings.show import INDENT, VALUE_WIDTH, difference_lines, effect_line, say
from gateway.engine.contract import AbortedEffect, Completed
from gateway.recording.format import answer_document
from gateway.recording.reader import RecordedEffect, Recording
from protocol.jsjson import loads
from services.model_executor.call_view import CallInvalid, view_call
from services.model_executor.outcomes import invalid_request
from services.model_executor.script import ScriptInvalid, load_script

_MAY_HAVE_HAPPENED: Final = (
    "The recorded run asked for the same and got no answer. It may have happened, so it is not done again."
)
_AFTER_ALL: Final = float(2**53)


class Source(Protocol):
    """Somebody who answers effects that the recording does not."""

    word: str
    """How its answers are marked."""

    def takes(self, asked: Asked) -> bool | str:
        """Whether it answers the effect; a sentence says why it can't although such effects are its own."""
        ...

    def answer(self, asked: Asked) -> Given:
        """The answer to an effect that it takes."""
        ...


class ModelScript:
    """Answers model calls from a file in the scripted model's format (services/model_executor/script.py)."""

    word = "script"

    def __init__(self, path: Path, recording: Recording) -> None:
        """Raises UsageError when the file can't be used."""
        try:
            self._script = load_script(str(path))
        except ScriptInvalid as error:
            raise UsageError(f"--script {path}: {error}.") from None
        self._agent = str(recording.input["manifest"].get("id"))

    def takes(self, asked: Asked) -> bool | str:
        """As of any source."""
        return asked.effect.model_call is not None

    def answer(self, asked: Asked) -> Given:
        """As of any source."""
        call = asked.effect.model_call
        assert call is not None
        try:
            delay_ms, outcome = self._script.answer(self._agent, view_call(call.text().decode()))
        except CallInvalid as error:
            delay_ms, outcome = 0, invalid_request(str(error))
        return Given(Completed({"value": loads(outcome)}), float(delay_ms))


class _Journal:
    """Answers entries of the journal, with which core does nothing else."""

    word = "journal"

    def takes(self, asked: Asked) -> bool | str:
        """As of any source."""
        return asked.effect.kind == "delegation"

    def answer(self, asked: Asked) -> Given:
        """As of any source."""
        return Given(Completed({"value": None}))


@dataclass(frozen=True, slots=True)
class _Request:
    effect_id: str
    request_hash: str


class WhatIf:
    """Plays a run with changes and prints each effect against the recorded one of the same id."""

    def __init__(self, recording: Recording, changes: Sequence[Change], sources: Sequence[Source]) -> None:
        """Raises NotReplayable."""
        self._recorded: dict[str, RecordedEffect] = {
            effect.effect_id: effect for effect in recording.effects()
        }
        self._changed = {change.effect_id for change in changes}
        self._sources: Sequence[Source] = (_Journal(), *sources)
        self._script = _script(recording, changes)
        self._unanswered = {
            _Request(effect.effect_id, effect.request_hash)
            for effect in recording.effects()
            if effect.effect_id not in self._script.answers
        }
        # Outcomes that came with the run are answers like all others, or they could not be changed.
        self.driven = driven_engine(replace(recording, input={**recording.input, "outcomes": []}))
        self.drift: Drift | None = None
        self._number = 0
        self._shown: Difference | None = None
        self._reasons: dict[str, str] = {}

    def play(self, until: str | None) -> Played:
        """To the end, to the effect `until`, or to where nobody answers."""
        return play(self.driven, self._script, until=until, seen=self._seen, find=self._find)

    def unanswered(self, missing: Sequence[Asked]) -> list[Asked]:
        """Those of the effects that nobody answers; others may only wait for them."""
        return [asked for asked in missing if self._source_of(asked) is None]

    def stuck(self, missing: Sequence[Asked]) -> Iterator[str]:
        """Why it goes no further, and the ways out."""
        unanswered = self.unanswered(missing)
        yield f"It stops here: nothing answers {', '.join(asked.effect_id for asked in unanswered) or 'it'}."
        reasons = dict.fromkeys(
            self._reasons[asked.effect_id] for asked in unanswered if asked.effect_id in self._reasons
        )
        yield from reasons
        used = {source.word for source in self._sources}
        ways = ["another --set EFFECT=FILE"]
        ways += [] if "script" in used else ["--script FILE for model calls"]
        ways += [] if "live" in used else ["--live, which asks real models and tools"]
        yield f"To go on, give {' or '.join(ways)}."

    # Told by the player

    def _seen(self, asked: Asked) -> None:
        self._number += 1
        recorded = self._recorded.get(asked.effect_id)
        drift = None if recorded is None else effect_drift(replace(recorded, known=asked.known), asked)
        verdict = "new" if recorded is None else "same" if drift is None else "other"
        say(effect_line(self._number, verdict, asked.effect.document))
        if drift is not None and drift.difference is not None and drift.difference != self._shown:
            self._shown = drift.difference
            for line in difference_lines(drift.difference):
                say(line)
        if (recorded is None or drift is not None) and not self._past_change() and self.drift is None:
            self.drift = drift or Drift(f"{asked.effect_id} is asked for in addition")
        if asked.effect_id in self._changed:
            self._say_answer("set", self._script.answers[asked.effect_id].answer)

    def _find(self, asked: Asked) -> Given | None:
        if self.drift is not None or not self._past_change():
            return None
        # Where one of several effects has no answer the run stops, so then nothing is done for the others.
        waiting = [one for one in self.driven.asked if one.effect_id in self.driven.waiting]
        sources = {one.effect_id: self._source_of(one) for one in waiting}
        source = sources[asked.effect_id]
        if source is None or None in sources.values():
            return None
        given = source.answer(asked)
        self._say_answer(source.word, given.answer)
        return given

    def _source_of(self, asked: Asked) -> Source | None:
        """Who answers an effect; None, and a reason where there is one, when nobody does."""
        if _Request(asked.effect_id, asked.effect.request_hash) in self._unanswered:
            self._reasons[asked.effect_id] = _MAY_HAVE_HAPPENED
            return None
        for source in self._sources:
            takes = source.takes(asked)
            if takes is True:
                return source
            if isinstance(takes, str):
                self._reasons[asked.effect_id] = takes
        return None

    def _past_change(self) -> bool:
        """Whether one of the other outcomes has been told."""
        told = {asked.effect_id for asked in self.driven.asked} - self.driven.waiting.keys()
        return bool(told & self._changed)

    def _say_answer(self, word: str, answer: Any) -> None:
        document = answer_document(answer)
        outcome: Any = document.get("outcome", document)
        value = outcome["value"] if set(outcome) == {"value"} else outcome
        say(f"{INDENT} {word}: {shown(value, VALUE_WIDTH)}")


def _script(recording: Recording, changes: Sequence[Change]) -> Script:
    """The recorded answers, each for its own request, with the changes in their places.

    What ended the recorded run early is left out where it came after the change.
    """
    script = script_of([recording])
    with_known_outcomes(script, recording)
    hashes = {effect.effect_id: effect.request_hash for effect in recording.effects()}
    for effect_id, scripted in list(script.answers.items()):
        if isinstance(scripted.answer, AbortedEffect):
            del script.answers[effect_id]
        else:
            script.answers[effect_id] = replace(scripted, request_hash=hashes.get(effect_id))
    places = []
    for change in changes:
        kept = script.answers.get(change.effect_id)
        place = _AFTER_ALL if kept is None or kept.place is None else kept.place
        now_ms = script.begin_ms if kept is None else kept.now_ms
        script.answers[change.effect_id] = ScriptedAnswer(change.answer, place, now_ms=now_ms)
        places.append(place)
    script.aborts = [(place, abort) for place, abort in script.aborts if place < min(places)]
    return script
