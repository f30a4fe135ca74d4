"""The other outcomes that a command line gives effects: `--set EFFECT=FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.recordings.find import UsageError, find_effect
from gateway.engine.contract import Answer, Completed
from gateway.recording.format import FormatError, read_answer
from gateway.recording.reader import RecordedEffect
from protocol.jsjson import JsonError, loads

MAX_FILE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Change:
    """What an effect is answered instead. It may be one that the recording does not have."""

    effect_id: str
    answer: Answer


def read_change(effects: Sequence[RecordedEffect], text: str) -> Change:
    """A change from `EFFECT=FILE`; both may have an equals sign in them. Raises UsageError."""
    pieces = text.split("=")
    if len(pieces) < 2:
        raise UsageError(f"--set {text} must be EFFECT=FILE.")
    splits = [("=".join(pieces[:i]), Path("=".join(pieces[i:]))) for i in range(1, len(pieces))]
    name, path = next((split for split in splits if split[1].is_file()), splits[0])
    answer = _outcome(path)
    try:
        return Change(find_effect(effects, name).effect_id, answer)
    except UsageError:
        if name.isdigit():
            raise
        return Change(name, answer)


def read_json_file(path: Path) -> Any:
    """The value of a file of at most 64 MiB. Raises UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than {MAX_FILE_BYTES} bytes.")
    try:
        return loads(data)
    except JsonError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None


def _outcome(path: Path) -> Answer:
    document = read_json_file(path)
    if isinstance(document, dict) and "value" in document and set(document) <= {"value", "statePatch"}:
        return Completed(document)
    try:
        return read_answer(document)
    except FormatError:
        raise UsageError(
            f'{path} must hold an outcome, {{"value": …}}, or an answer such as {{"status": "pending"}} or '
            '{"status": "failed", "message": "…"}.'
        ) from None
