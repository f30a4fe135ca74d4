"""Looks into one recorded run: stops at an effect, or goes on with another outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cli.recordings.changes import read_change
from cli.recordings.driven import Asked, DrivenEngine
from cli.recordings.exit_codes import DRIFT, SAME, UNUSABLE
from cli.recordings.find import UsageError, find_effect, read_one
from cli.recordings.replaying import NotReplayable, replay
from cli.recordings.show import drift_lines, effect_line, end_line, say, state_lines, title
from cli.recordings.what_if import ModelScript, Source, WhatIf
from gateway.recording.reader import RecordedEffect, Recording


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a command line asks for: where to stop, what to change, and who answers what the recording
    does not. `environ` says where the services are that answer live."""

    until: str | None = None
    changes: Sequence[str] = ()
    script: Path | None = None
    live: bool = False
    manifest: Path | None = None
    environ: Mapping[str, str] | None = None

    def __bool__(self) -> bool:
        return self.until is not None or bool(self.changes)

    def check(self) -> None:
        """Raises UsageError for options that make no sense together."""
        if (self.script is not None or self.live) and not self.changes:
            raise UsageError(
                "--script and --live go on after another outcome: give one with --set EFFECT=FILE."
            )
        if self.manifest is not None and not self.live:
            raise UsageError("--manifest is for --live, which starts the agent's MCP servers.")


def explore(paths: Sequence[Path], wanted: Exploration) -> int:
    """Prints what is found; the exit code. Raises UsageError, RecordingUnreadable and NotReplayable."""
    if len(paths) != 1 or paths[0].is_dir():
        raise UsageError("--until and --set look into one recording: name one file.")
    recording = read_one(paths[0])
    until = _until(recording.effects(), wanted.until, changed=bool(wanted.changes))
    try:
        if not wanted.changes:
            say(title(recording))
            return _stop_at(recording, until)
        return _go_on(recording, until, wanted)
    except NotReplayable as error:
        raise NotReplayable(f"{recording.path} {error}.") from None


def _until(effects: Sequence[RecordedEffect], until: str | None, *, changed: bool) -> str | None:
    """The id to stop at. After a change, effects may come that the recording never had."""
    if until is None:
        return None
    try:
        return find_effect(effects, until).effect_id
    except UsageError:
        if changed and not until.isdigit():
            return until
        raise


def _stop_at(recording: Recording, until: str | None) -> int:
    replayed, driven = replay(recording, until=until)
    for effect in replayed.same:
        say(effect_line(effect.number, "same", effect.document))
    if replayed.drift is not None:
        for line in drift_lines(replayed.drift, len(replayed.same) + 1, driven):
            say(line)
        return DRIFT
    if replayed.stopped_at is None:
        raise NotReplayable(f"ends before {until}")
    _print_state(driven, replayed.stopped_at)
    return SAME


def _go_on(recording: Recording, until: str | None, wanted: Exploration) -> int:
    changes = [read_change(recording.effects(), text) for text in wanted.changes]
    with ExitStack() as stack:
        sources: list[Source] = []
        if wanted.script is not None:
            sources.append(ModelScript(wanted.script, recording))
        if wanted.live:
            from cli.recordings.live import LiveServices  # gRPC, which hardly any replay needs

            sources.append(
                stack.enter_context(LiveServices(recording, wanted.environ or {}, wanted.manifest))
            )
        say(title(recording))
        what_if = WhatIf(recording, changes, sources)
        played = what_if.play(until)
    driven = what_if.driven
    if what_if.drift is not None:
        say("The run drifts before the change, so the change shows nothing.")
        return DRIFT
    if played.stopped_at is not None:
        _print_state(driven, played.stopped_at)
        return SAME
    if driven.end is not None:
        fault = driven.end.fault
        say(f"the end: {end_line(driven.end)}" if fault is None else f"the engine fails: {fault}")
        return SAME if fault is None else DRIFT
    for asked in what_if.unanswered(played.missing)[:1]:
        _print_state(driven, asked)
    say("")
    for line in what_if.stuck(played.missing):
        say(line)
    return UNUSABLE


def _print_state(driven: DrivenEngine, stopped: Asked) -> None:
    number = next(i for i, one in enumerate(driven.asked, 1) if one.effect_id == stopped.effect_id)
    say("")
    for line in state_lines(stopped, number, list(driven.waiting), driven.snapshot()):
        say(line)
