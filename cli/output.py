"""How the output of several processes looks on one terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

COLOURS = {
    "dev-core": "36",
    "model-executor": "35",
    "mcp-pool": "33",
    "sandbox-manager": "32",
    "gateway": "34",
    "up": "1",
}
LEVEL_COLOURS = {"warn": "33", "error": "31"}
WIDTH = max(map(len, COLOURS))

LineSink = Callable[[str, str], None]
"""Takes a process name and one line of its output."""


def wants_colour() -> bool:
    """Colours only on a terminal, and never against NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_sink(colour: bool) -> LineSink:
    """Prints each line with the name of its process before it."""

    def show(name: str, line: str) -> None:
        print(format_line(name, line, colour), flush=True)

    return show


def format_line(name: str, line: str, colour: bool) -> str:
    """One line for people: log lines in JSON become `time event key=value ...`, others stay as they are."""
    prefix = paint(f"{name:<{WIDTH}} |", COLOURS.get(name, "0"), colour)
    return f"{prefix} {_readable(_printable(line), colour)}"


def _readable(line: str, colour: bool) -> str:
    if not line.startswith("{"):
        return line
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or not {"level", "message", "time"} <= record.keys():
        return line
    level, message, time = (str(record.pop(key)) for key in ("level", "message", "time"))
    record.pop("service", None)
    fields = " ".join(f"{key}={_compact(value)}" for key, value in record.items())
    event = paint(message, LEVEL_COLOURS.get(level, "1"), colour)
    return f"{time[11:23]} {event} {fields}".rstrip()


def _compact(value: object) -> str:
    return (
        value
        if isinstance(value, str) and value and " " not in value
        else json.dumps(value, ensure_ascii=False)
    )


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line)


def paint(text: str, code: str, colour: bool) -> str:
    """The text in a colour of the terminal, where colours are wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
