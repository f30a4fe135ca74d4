"""`whippletree replay`: does this build still ask for the same as when a run was recorded?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.recordings.exit_codes import DRIFT, SAME, UNUSABLE
from cli.recordings.explore import Exploration, explore
from cli.recordings.find import UsageError, files_below, is_recording, read_one, vector_records
from cli.recordings.replaying import NotReplayable, replay
from cli.recordings.show import drift_lines, effect_line, end_line, say, title, unfinished_text
from cli.recordings.vectors import replay_case
from gateway.engine.definitions import DefinitionCache
from gateway.recording.reader import Recording, RecordingUnreadable


def run_replay(paths: Sequence[Path], wanted: Exploration, *, serve: bool) -> int:
    """Replays recordings and prints what comes of it; the exit code."""
    try:
        wanted.check()
        if serve:
            if wanted:
                raise UsageError("--serve goes with neither --until nor --set.")
            from cli.recordings.serve import serve_recordings

            return serve_recordings(_files(paths), sys.stdin.buffer, sys.stdout.buffer)
        if wanted:
            return explore(paths, wanted)
        return _Suite().run(_files(paths))
    except KeyboardInterrupt:
        say("Stopped.", file=sys.stderr)
        return UNUSABLE
    except (UsageError, RecordingUnreadable, NotReplayable) as error:
        say(str(error), file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:
        # Whoever read has seen enough; without this Python complains once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNUSABLE


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    if not paths:
        raise UsageError("Name a recording, or a folder of recordings.")
    return list(files_below(paths))


class _Suite:
    """Replays files one after another. One file is told effect by effect, several in a line each."""

    def __init__(self) -> None:
        self._definitions = DefinitionCache()
        self._same = 0
        self._drifts = 0
        self._unusable = 0
        self._others = 0

    def run(self, files: Sequence[tuple[Path, bool]]) -> int:
        """All files; the exit code."""
        alone = len(files) == 1
        for path, named in files:
            self._file(path, named=named, alone=alone)
        total = self._same + self._drifts + self._unusable
        if not alone:
            say(_summary(total, self._same, self._drifts, self._unusable, self._others))
        if not total:
            text = "No recordings there. A gateway writes them when WHIPPLETREE_RECORD_DIR names a folder."
            say(text, file=sys.stderr)
        if self._drifts:
            return DRIFT
        return UNUSABLE if self._unusable or not total else SAME

    def _file(self, path: Path, *, named: bool, alone: bool) -> None:
        try:
            if is_recording(path):
                self._recording(read_one(path), alone=alone)
                return
            cases = vector_records(path)
        except (RecordingUnreadable, NotReplayable) as error:
            self._not_usable(str(error))
            return
        except OSError as error:
            self._not_usable(f"{path} can't be read: {error.strerror or error}.")
            return
        if cases is not None:
            for name, record in cases:
                self._case(f"{path} ({name})" if len(cases) > 1 else str(path), record)
        elif named:
            self._not_usable(f"{path} is not a recording: its first line does not say so.")
        else:
            self._others += 1

    def _recording(self, recording: Recording, *, alone: bool) -> None:
        try:
            replayed, driven = replay(recording, self._definitions)
        except NotReplayable as error:
            raise NotReplayable(f"{recording.path} {error}.") from None
        drift, count = replayed.drift, len(replayed.same)
        if alone:
            say(title(recording))
            for effect in replayed.same:
                say(effect_line(effect.number, "same", effect.document))
        if drift is not None:
            self._drifts += 1
            if not alone:
                say(f"DRIFT {recording.path}: {_effects(count)} the same, then")
            _print(drift_lines(drift, count + 1, driven))
            return
        rest = unfinished_text(recording)
        if recording.broken is not None:
            self._not_usable(f"{recording.path}: {_effects(count)} the same, then {rest}")
            return
        self._same += 1
        if rest is not None:
            say(f"same  {recording.path}: {_effects(count)}, then {rest}")
        elif alone:
            assert replayed.ended is not None
            say(f"same: {_effects(count)} and the end ({end_line(replayed.ended)})")
        else:
            say(f"same  {recording.path}: {_effects(count)} and the end")

    def _case(self, name: str, record: Mapping[str, Any]) -> None:
        try:
            same, drift = replay_case(record)
        except (KeyError, TypeError, AttributeError, ValueError):
            self._others += 1
            return
        if drift is None:
            self._same += 1
            say(f"same  {name}: {_effects(same)} and the end")
        else:
            self._drifts += 1
            say(f"DRIFT {name}:")
            _print(drift_lines(drift, None))

    def _not_usable(self, text: str) -> None:
        self._unusable += 1
        say(text, file=sys.stderr)


def _summary(total: int, same: int, drifts: int, unusable: int, others: int) -> str:
    parts = [f"{total} recordings: {same} the same, {drifts} with drift"]
    if unusable:
        parts.append(f"{unusable} not usable")
    if others:
        parts.append(f"{others} other files left alone")
    return ", ".join(parts)


def _effects(count: int) -> str:
    return "1 effect" if count == 1 else f"{count} effects"


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)
