"""Files that a person names on the command line: messages, agents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Document = dict[str, Any]


class InputError(Exception):
    """What was typed can't be used; the text says why."""


def message(text: str | None, file: Path | None, data: Path | None) -> Document:
    """The message that exactly one of the three gives; `-` as the text is what stands on stdin.

    Raises InputError.
    """
    if sum(given is not None for given in (text, file, data)) != 1:
        raise InputError("Give a text, or - for the text on stdin, or --file with one, or --data with JSON.")
    if data is not None:
        return {"data": json_of(data)}
    if text == "-":
        return {"text": sys.stdin.read()}
    return {"text": text if file is None else text_of(file)}


def agent_body(path: Path) -> Document:
    """What puts an agent, from a file with a manifest or with `{manifest, actions?}`. Raises InputError."""
    found = json_of(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object.")
    return found if "manifest" in found else {"manifest": found}


def json_of(path: Path) -> Any:
    """The JSON of a file. Raises InputError."""
    try:
        return json.loads(text_of(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deep.") from None


def text_of(path: Path) -> str:
    """The text of a file. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8.") from None
