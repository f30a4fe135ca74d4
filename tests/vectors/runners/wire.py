"""Whole conversations over a real WebSocket: frames in order, closes, reconnects, aborts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import structlog
import uvloop

from protocol import jsjson
from tests.vectors.case import Case, judge
from tests.vectors.wire.player import Mismatch, play

KINDS = ("wire",)


def run(_kind: str, path: Path) -> Iterator[Case]:
    """The one case of a file."""
    recording = jsjson.loads(path.read_bytes())
    assert isinstance(recording, dict)
    fault: str | None = None
    with _without_logs():
        try:
            # The gateway's own loop.
            uvloop.run(play(recording))
        except Mismatch as mismatch:
            fault = str(mismatch)
    yield judge(recording["name"], fault)


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """The harness's own log lines do not belong into the report."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent
