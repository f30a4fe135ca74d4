"""Plays a run whose effects are answered by their ids, in the order of a script.

For runs that leave the recorded path: another outcome was set, another manifest or message was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cli.recordings.live import Asked, LiveEngine
from gateway.engine.contract import Abort, Answer, Completed
from gateway.recording.reader import AbortTold, Answered, Began, Recording


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer, and when it comes: `place` in the order of all answers, or `delay_ms` after its effect.

    `abort` aborts the run just before it.
    """

    answer: Answer
    place: float | None = None
    delay_ms: float = 0.0
    now_ms: float = 0.0
    abort: Abort | None = None


@dataclass(slots=True)
class Script:
    """Answers by effect id, and aborts at their places in the order."""

    answers: dict[str, ScriptedAnswer] = field(default_factory=dict)
    aborts: list[tuple[float, Abort]] = field(default_factory=list)
    begin_ms: float = 0.0
    begin_place: float = 0.0


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


def play(
    live: LiveEngine,
    script: Script,
    *,
    until: str | None = None,
    seen: Callable[[Asked], None] | None = None,
) -> Played:
    """Runs to the end, to the effect `until`, or to where no answer is left. `seen` is told every effect."""
    player = _Player(live, script, seen or _ignore)
    return player.play(until)


class _Player:
    def __init__(self, live: LiveEngine, script: Script, seen: Callable[[Asked], None]) -> None:
        self._live = live
        self._script = script
        self._seen = seen
        self._told = 0
        self._due: dict[str, tuple[float, int]] = {}
        self._now = script.begin_ms
        self._aborts = sorted(script.aborts, key=lambda abort: abort[0])

    def play(self, until: str | None) -> Played:
        self._abort_before(self._script.begin_place)
        self._live.begin(self._now)
        while True:
            for asked in self._new():
                if asked.effect_id == until:
                    return Played(stopped_at=asked)
            if self._live.end is not None:
                return Played()
            if not self._next():
                by_id = {asked.effect_id: asked for asked in self._live.asked}
                return Played(missing=[by_id[effect_id] for effect_id in self._live.waiting])

    def _new(self) -> list[Asked]:
        new = self._live.asked[self._told :]
        self._told = len(self._live.asked)
        for asked in new:
            self._seen(asked)
            scripted = self._script.answers.get(asked.effect_id)
            if scripted is not None and asked.effect_id in self._live.waiting:
                due = self._now + scripted.delay_ms if scripted.place is None else scripted.place
                self._due[asked.effect_id] = (due, self._live.waiting[asked.effect_id])
        return new

    def _next(self) -> bool:
        """Tells the engine the next thing; False when there is nothing to tell."""
        if not self._due:
            return self._abort_before(float("inf"))
        effect_id = min(self._due, key=self._due.__getitem__)
        due, _ = self._due.pop(effect_id)
        scripted = self._script.answers[effect_id]
        if scripted.place is None:
            self._now = due
        else:
            self._abort_before(due)
            self._now = max(self._now, scripted.now_ms)
        if scripted.abort is not None:
            self._live.abort(scripted.abort)
        self._live.answer(effect_id, scripted.answer, self._now)
        return True

    def _abort_before(self, place: float) -> bool:
        aborted = False
        while self._aborts and self._aborts[0][0] < place:
            self._live.abort(self._aborts.pop(0)[1])
            aborted = True
        return aborted


def _ignore(_: Asked) -> None:
    return None
