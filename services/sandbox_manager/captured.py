"""What a command printed, up to a limit, and how a command that was killed is told."""

from __future__ import annotations

from typing import Final

from services.sandbox_manager.contract import ExecResult
from services.sandbox_manager.kills import ABORTED, TIMED_OUT, Kill
from services.sandbox_manager.text import decode

STREAM_BYTES: Final = 4 * 1024 * 1024
"""Kept of each stream; the rest is counted and dropped."""

NEVER_BEGAN: Final = ExecResult(ABORTED.exit_code, "", "", killed=True)
"""A command that was aborted before anything was started for it."""


class Captured:
    """What was read of one stream."""

    __slots__ = ("dropped", "kept")

    def __init__(self) -> None:
        self.kept = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Keeps what there is room for."""
        room = STREAM_BYTES - len(self.kept)
        self.kept += data[:room]
        self.dropped += max(len(data) - room, 0)


def exec_result(stdout: Captured, stderr: Captured, exit_code: int, killed: Kill | None) -> ExecResult:
    """How a command ended; `killed` says why it was killed, None when it was not."""
    return ExecResult(
        exit_code=exit_code if killed is None else killed.exit_code,
        stdout=decode(bytes(stdout.kept)),
        stderr=decode(bytes(stderr.kept)),
        killed=killed is not None,
        timed_out=killed is TIMED_OUT,
        stdout_dropped=stdout.dropped,
        stderr_dropped=stderr.dropped,
        note=None if killed is None else killed.note,
    )
