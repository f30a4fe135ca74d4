"""Plays a run whose effects are answered by their ids, in the order of a script.

For runs that leave the recorded path: another outcome was set, another manifest or message was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cli.recordings.driven import Asked, DrivenEngine
from gateway.engine.contract import Abort, Answer, Completed
from gateway.recording.reader import AbortTold, Answered, Began, Recording


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer, and when it comes: `place` in the order of all answers, or `delay_ms` after its effect.

    `abort` aborts the run just before it. With `request_hash` it answers no other request of that id.
    """

    answer: Answer
    place: float | None = None
    delay_ms: float = 0.0
    now_ms: float = 0.0
    abort: Abort | None = None
    request_hash: str | None = None

    def fits(self, asked: Asked) -> bool:
        """Whether it answers this request of its effect."""
        return self.request_hash in (None, asked.effect.request_hash)


@dataclass(slots=True)
class Script:
    """Answers by effect id, and aborts at their places in the order."""

    answers: dict[str, ScriptedAnswer] = field(default_factory=dict)
    aborts: list[tuple[float, Abort]] = field(default_factory=list)
    begin_ms: float = 0.0
    begin_place: float = 0.0


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that was found while the engine waited, after so many milliseconds."""

    answer: Answer
    elapsed_ms: float = 0.0


@dataclass(slots=True)
class Played:
    """How a play went. `missing` are effects that nobody answers, when it could not go on."""

    missing: list[Asked] = field(default_factory=list)
    stopped_at: Asked | None = None


def script_of(recordings: Iterable[Recording]) -> Script:
    """The answers of one run, or of several that tell of one segment: the later a known outcome, the better.

    An effect that was pending in one run and has its outcome in the next counts as answered with it.
    """
    script = Script()
    place = 0
    for recording in recordings:
        for known in recording.segment().outcomes.values():
            kept = script.answers.get(known.effect_id)
            if kept is not None and not isinstance(kept.answer, Completed):
                script.answers[known.effect_id] = ScriptedAnswer(
                    Completed(known.outcome), kept.place, now_ms=kept.now_ms
                )
        for moment in recording.moments:
            place += 1
            match moment.told:
                case Began(now_ms=now):
                    if not script.begin_place:
                        script.begin_ms, script.begin_place = now, place
                case Answered(effect_id=effect_id, answer=answer, now_ms=now):
                    script.answers[effect_id] = ScriptedAnswer(answer, place, now_ms=now)
                case AbortTold(abort=abort):
                    script.aborts.append((place, abort))
    return script


def with_known_outcomes(script: Script, recording: Recording) -> None:
    """Lets the script answer what came with the run: as soon as it is asked for, like the engine does."""
    for index, known in enumerate(recording.segment().outcomes.values()):
        place = script.begin_place + (index + 1) / 1e6
        script.answers[known.effect_id] = ScriptedAnswer(
            Completed(known.outcome), place, now_ms=script.begin_ms
        )


def play(
    driven: DrivenEngine,
    script: Script,
    *,
    until: str | None = None,
    seen: Callable[[Asked], None] | None = None,
    find: Callable[[Asked], Given | None] | None = None,
) -> Played:
    """Runs to the end, to the effect `until`, or to where no answer is left.

    `seen` is told every effect. `find` is asked for the answer to an effect that the script does not answer,
    one after another, once nothing else is left to tell the engine.
    """
    player = _Player(driven, script, seen or _ignore, find or _nobody)
    return player.play(until)


class _Player:
    def __init__(
        self,
        driven: DrivenEngine,
        script: Script,
        seen: Callable[[Asked], None],
        find: Callable[[Asked], Given | None],
    ) -> None:
        self._driven = driven
        self._script = script
        self._seen = seen
        self._find = find
        self._told = 0
        self._due: dict[int, tuple[float, str]] = {}
        self._open: dict[int, Asked] = {}
        self._now = script.begin_ms
        self._aborts = sorted(script.aborts, key=lambda abort: abort[0])

    def play(self, until: str | None) -> Played:
        self._abort_before(self._script.begin_place)
        self._driven.begin(self._now)
        while True:
            for asked in self._new():
                if asked.effect_id == until:
                    return Played(stopped_at=asked)
            if self._driven.end is not None:
                return Played()
            if not (self._next() or self._found()):
                return Played(missing=list(self._open.values()))

    def _new(self) -> list[Asked]:
        new = self._driven.asked[self._told :]
        self._told = len(self._driven.asked)
        for asked in new:
            self._seen(asked)
            # The last of its numbers that nothing is due for yet.
            waiting = self._driven.waiting.get(asked.effect_id, ())
            number = next((n for n in waiting if n not in self._due and n not in self._open), None)
            if number is None:
                continue
            scripted = self._script.answers.get(asked.effect_id)
            if scripted is None or not scripted.fits(asked):
                self._open[number] = asked
                continue
            due = self._now + scripted.delay_ms if scripted.place is None else scripted.place
            self._due[number] = (due, asked.effect_id)
        return new

    def _next(self) -> bool:
        """Tells the engine the next thing of the script; False when there is nothing to tell."""
        if not self._due:
            return self._abort_before(float("inf"))
        number = min(self._due, key=lambda number: (self._due[number][0], number))
        due, effect_id = self._due.pop(number)
        scripted = self._script.answers[effect_id]
        if scripted.place is None:
            self._now = due
        else:
            self._abort_before(due)
            self._now = max(self._now, scripted.now_ms)
        if scripted.abort is not None:
            self._driven.abort(scripted.abort)
        self._driven.answer(effect_id, scripted.answer, self._now)
        return True

    def _found(self) -> bool:
        """Tells the engine an answer that the script does not have; False when nobody finds one."""
        for number, asked in self._open.items():
            given = self._find(asked)
            if given is not None:
                del self._open[number]
                self._now += given.elapsed_ms
                self._driven.answer(asked.effect_id, given.answer, self._now)
                return True
        return False

    def _abort_before(self, place: float) -> bool:
        aborted = False
        while self._aborts and self._aborts[0][0] < place:
            self._driven.abort(self._aborts.pop(0)[1])
            aborted = True
        return aborted


def _ignore(_: Asked) -> None:
    return None


def _nobody(_: Asked) -> None:
    return None
