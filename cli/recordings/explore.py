"""Looks into one recorded run: stops at an effect, or goes on with another outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.recordings.difference import Difference
from cli.recordings.exit_codes import DRIFT, SAME, UNUSABLE
from cli.recordings.find import UsageError, find_effect, read_one
from cli.recordings.live import Asked, LiveEngine
from cli.recordings.replaying import Drift, NotReplayable, effect_drift, live_engine, replay
from cli.recordings.scripted import ScriptedAnswer, play, script_of
from cli.recordings.show import (
    difference_lines,
    drift_lines,
    effect_line,
    end_line,
    say,
    state_lines,
    title,
)
from gateway.engine.contract import Answer, Completed
from gateway.recording.format import FormatError, read_answer
from gateway.recording.reader import RecordedEffect, Recording
from protocol.jsjson import JsonError, loads

_MAX_OUTCOME_BYTES: Final = 64 * 1024 * 1024
_AFTER_ALL: Final = float(2**53)


@dataclass(frozen=True, slots=True)
class _Change:
    effect: RecordedEffect | None
    effect_id: str
    answer: Answer


def explore(paths: Sequence[Path], until: str | None, changes: Sequence[str]) -> int:
    """Prints what is found; the exit code. Raises UsageError, RecordingUnreadable and NotReplayable."""
    if len(paths) != 1 or paths[0].is_dir():
        raise UsageError("--until and --set look into one recording: name one file.")
    recording = read_one(paths[0])
    effects = recording.effects()
    changed = [_change(effects, text) for text in changes]
    stop = _until(effects, until, changed)
    say(title(recording))
    try:
        if changed:
            return _play_changed(recording, changed, stop)
        return _stop_at(recording, stop)
    except NotReplayable as error:
        raise NotReplayable(f"{recording.path} {error}.") from None


def _until(effects: Sequence[RecordedEffect], until: str | None, changed: Sequence[_Change]) -> str | None:
    """The id to stop at. After a change, effects may come that the recording never had."""
    if until is None:
        return None
    try:
        return find_effect(effects, until).effect_id
    except UsageError:
        if changed and not until.isdigit():
            return until
        raise


def _change(effects: Sequence[RecordedEffect], text: str) -> _Change:
    """A change from `EFFECT=FILE`; both may have an equals sign in them."""
    pieces = text.split("=")
    if len(pieces) < 2:
        raise UsageError(f"--set {text} must be EFFECT=FILE.")
    splits = [("=".join(pieces[:i]), Path("=".join(pieces[i:]))) for i in range(1, len(pieces))]
    name, path = next((split for split in splits if split[1].is_file()), splits[0])
    answer = _outcome(path)
    try:
        effect = find_effect(effects, name)
    except UsageError:
        if name.isdigit():
            raise
        return _Change(None, name, answer)
    return _Change(effect, effect.effect_id, answer)


def _outcome(path: Path) -> Answer:
    """An outcome from a file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_OUTCOME_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}.") from None
    if len(data) > _MAX_OUTCOME_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_OUTCOME_BYTES} bytes.")
    try:
        document = loads(data)
    except JsonError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None
    if isinstance(document, dict) and "value" in document and set(document) <= {"value", "statePatch"}:
        return Completed(document)
    try:
        return read_answer(document)
    except FormatError:
        raise UsageError(
            f'{path} must hold an outcome, {{"value": …}}, or an answer such as {{"status": "pending"}} or '
            '{"status": "failed", "message": "…"}.'
        ) from None


def _stop_at(recording: Recording, until: str | None) -> int:
    replayed, live = replay(recording, until=until)
    for effect in replayed.same:
        say(effect_line(effect.number, "same", effect.document))
    if replayed.drift is not None:
        for line in drift_lines(replayed.drift, len(replayed.same) + 1, live):
            say(line)
        return DRIFT
    if replayed.stopped_at is None:
        raise NotReplayable(f"ends before {until}")
    _print_state(live, replayed.stopped_at)
    return SAME


def _print_state(live: LiveEngine, stopped: Asked) -> None:
    number = next(i for i, one in enumerate(live.asked, 1) if one.effect_id == stopped.effect_id)
    waiting = list(live.waiting)
    say("")
    for line in state_lines(stopped, number, waiting, live.stopped(0.0)):
        say(line)


def _play_changed(recording: Recording, changes: Sequence[_Change], until: str | None) -> int:
    live, script = live_engine(recording), script_of([recording])
    for change in changes:
        kept = script.answers.get(change.effect_id)
        place = _AFTER_ALL if kept is None else kept.place
        now_ms = script.begin_ms if kept is None else kept.now_ms
        script.answers[change.effect_id] = ScriptedAnswer(change.answer, place, now_ms=now_ms)
        if change.effect is not None and change.effect.known:
            raise UsageError(
                f"{change.effect_id} was answered before this run, so its outcome stands in the file's second "
                "line; change it there."
            )
    watch = _Watch(recording.effects(), {change.effect_id for change in changes})
    played = play(live, script, until=until, seen=watch.seen)
    if watch.drift is not None:
        say("The run drifts before the change, so the change shows nothing.")
        return DRIFT
    if played.stopped_at is not None:
        _print_state(live, played.stopped_at)
        return SAME
    if live.end is not None:
        fault = live.end.fault
        say(f"the end: {end_line(live.end)}" if fault is None else f"the engine fails: {fault}")
        return SAME if fault is None else DRIFT
    names = ", ".join(asked.effect_id for asked in played.missing) or "nothing"
    say(
        f"It stops here: the recording has no answer for {names}. Live answers are not built; give an outcome "
        "with another --set EFFECT=FILE."
    )
    return UNUSABLE


class _Watch:
    """Prints each effect of a changed run against the recorded one of the same id."""

    def __init__(self, recorded: Sequence[RecordedEffect], changed: set[str]) -> None:
        self._recorded = {effect.effect_id: effect for effect in recorded}
        self._changed = changed
        self._number = 0
        self._past_change = False
        self._shown: Difference | None = None
        self.drift: Drift | None = None

    def seen(self, asked: Asked) -> None:
        """The next effect."""
        self._number += 1
        recorded = self._recorded.get(asked.effect_id)
        drift = None if recorded is None else effect_drift(recorded, asked)
        verdict = "new" if recorded is None else "same" if drift is None else "other"
        say(effect_line(self._number, verdict, asked.effect.document))
        if drift is not None and drift.difference is not None and drift.difference != self._shown:
            self._shown = drift.difference
            for line in difference_lines(drift.difference):
                say(line)
        if (recorded is None or drift is not None) and not self._past_change and self.drift is None:
            self.drift = drift or Drift(f"{asked.effect_id} is asked for in addition")
        if asked.effect_id in self._changed:
            self._past_change = True
