"""Finds the recordings behind the paths of a command line, and the effects behind its names for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.recording.format import SUFFIX
from gateway.recording.reader import RecordedEffect, Recording, RecordingUnreadable, read_recording
from protocol.jsjson import JsonError, loads

_VECTOR_SUFFIXES = (".json", ".jsonl")


class UsageError(Exception):
    """The command line can't be followed; the text is one line for the person who typed it."""


def files_below(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file with whether it was named itself; folders are walked, in the order of names."""
    for path in paths:
        if path.is_dir():
            found = (file for file in path.rglob("*") if file.suffix in _VECTOR_SUFFIXES and file.is_file())
            for file in sorted(found):
                if not any(part.startswith(".") for part in file.relative_to(path).parts):
                    yield file, False
        elif path.exists():
            yield path, True
        else:
            raise UsageError(f"{path} is not there.")


def is_recording(path: Path) -> bool:
    """Whether the file's first line says so. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(64)
    return first.replace(b" ", b"").startswith(b'{"type":"recording"')


def vector_records(path: Path) -> list[tuple[str, dict[str, Any]]] | None:
    """The cases of a file of recorded segments, with their names; None when it is something else."""
    if path.suffix not in _VECTOR_SUFFIXES:
        return None
    try:
        data = path.read_bytes()
        texts = data.split(b"\n") if path.suffix == SUFFIX else [data]
        records = [loads(text) for text in texts if text.strip()]
    except JsonError:
        return None
    found: list[tuple[str, dict[str, Any]]] = []
    for record in records:
        if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
            return None
        found.append((str(record.get("name", path.stem)), record))
    return found or None


def read_one(path: Path) -> Recording:
    """A recording that was named. Raises RecordingUnreadable with the path, and UsageError."""
    if not path.exists():
        raise UsageError(f"{path} is not there.")
    try:
        return read_recording(path)
    except RecordingUnreadable as error:
        raise RecordingUnreadable(f"{path} {error}.") from None
    except OSError as error:
        raise RecordingUnreadable(f"{path} can't be read: {error.strerror or error}.") from None


def find_effect(effects: Sequence[RecordedEffect], name: str) -> RecordedEffect:
    """The effect with this number, this id, or this end of an id. Raises UsageError."""
    if name.isascii() and name.isdigit():
        if 1 <= int(name) <= len(effects):
            return effects[int(name) - 1]
        raise UsageError(f"There is no effect {name}: the recording has {len(effects)}.")
    exact = [effect for effect in effects if effect.effect_id == name]
    found = exact or [effect for effect in effects if effect.effect_id.endswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"Several effects end with {name}; give a whole id or a number.")
    raise UsageError(f"There is no effect {name} in the recording; give its number, its id or the id's end.")
