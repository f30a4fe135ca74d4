"""Frames, params, results and messages: accepted or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from protocol.frames import FrameInvalid, decode_frame
from protocol.methods import MethodInvalid, check_message, check_params, check_result
from tests.vectors.case import Case, judge
from tests.vectors.files import records

KINDS = ("frames",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for line, record in records(path):
        name = f"{line} {record['kind']} {record.get('method', '')}".strip()
        yield judge(name, _fault(record))


def _fault(record: dict[str, Any]) -> str | None:
    try:
        _check(record)
    except (FrameInvalid, MethodInvalid) as error:
        return f"refused: {error}" if record["ok"] else None
    return None if record["ok"] else "accepted, and should be refused"


def _check(record: dict[str, Any]) -> None:
    value = record["value"]
    match record["kind"]:
        case "frame":
            decode_frame(jsjson.dumps(value))
        case "params":
            check_params(record["method"], value)
        case "result":
            check_result(record["method"], value)
        case "message":
            check_message(record["method"], value)
        case other:
            raise ValueError(f"unknown kind of frame {other}")
