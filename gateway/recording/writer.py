"""Writes recordings on a thread of its own, so that no run waits for a disk.

Runs hand over lines; what can't be taken, written or kept ends that recording and nothing else. Its file
then says why it is cut, or is gone when the disk itself fails.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.recording.folder import RecordingFolder
from protocol.jsjson import dumps_bytes
from services.common.logs import error_text, get_logger

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Text that may wait for the disk; more is made than it takes, so a recording that comes then is cut."""

MAX_WAITING_LINES: Final = 20_000
"""The same in lines: each holds on to what it is made of."""

_GATHER_S: Final = 0.05
"""How long lines gather before they are written: a thread that wakes for each would take the loop's time."""

_GATHER_BYTES: Final = 1024 * 1024
"""So much is written at once without waiting."""

_CUT_ROOM: Final = 1024
"""Bytes of a file that are kept for the line that says why it is cut."""

T = TypeVar("T")

FILE_LIMIT: Final = "the file's size limit is reached"
TOO_SLOW: Final = "the disk took longer than the run"


@dataclass(slots=True)
class RecordingFile:
    """One recording on its way to the disk. All but `closed` belongs to the writer's thread."""

    stem: str
    name: str | None = None
    size: int = 0
    unwritten: bytearray = field(default_factory=bytearray)
    closed: bool = False
    """Its owner hands over no more lines."""
    done: bool = False
    """It is whole, cut or given up: what still comes is dropped."""


@dataclass(slots=True)
class _Line:
    file: RecordingFile
    build: Callable[[], bytes]
    size: int
    cut: str | None = None
    last: bool = False


@dataclass(slots=True)
class _Waiting:
    lines: deque[_Line] = field(default_factory=deque)
    size: int = 0
    closing: bool = False


class Writer:
    """The thread. Started by the first recording, ended by `close`."""

    def __init__(
        self,
        folder: RecordingFolder,
        *,
        max_file_bytes: int,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_waiting_lines: int = MAX_WAITING_LINES,
    ) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._max_waiting_lines = max_waiting_lines
        self._waiting = _Waiting()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._warned = False

    def put(self, file: RecordingFile, build: Callable[[], bytes], size: int, *, last: bool = False) -> None:
        """Hands over a line, without its line end, of about `size` bytes. `last` makes the file whole.

        `build` is called on the thread. A line that finds no room cuts the recording.
        """
        if file.closed:
            return
        with self._news:
            waiting = self._waiting
            full = (
                waiting.size + size > self._max_waiting_bytes or len(waiting.lines) >= self._max_waiting_lines
            )
        self._push(_Line(file, _nothing, 0, cut=TOO_SLOW) if full else _Line(file, build, size, last=last))
        file.closed = full or last

    def cut(self, file: RecordingFile, reason: str) -> None:
        """Ends a recording before its run has."""
        if not file.closed:
            file.closed = True
            self._push(_Line(file, _nothing, 0, cut=reason))

    def close(self, limit_s: float) -> bool:
        """Writes what waits, for at most `limit_s` seconds; False when something is left."""
        with self._news:
            self._waiting.closing = True
            self._news.notify()
            thread = self._thread
        if thread is None:
            return True
        thread.join(limit_s)
        return not thread.is_alive()

    def _push(self, line: _Line) -> None:
        with self._news:
            # Without room for a cut either, a file is left as if its process had died.
            if self._waiting.closing or len(self._waiting.lines) >= 2 * self._max_waiting_lines:
                return
            self._waiting.lines.append(line)
            self._waiting.size += line.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="recordings", daemon=True)
                self._thread.start()
            if len(self._waiting.lines) == 1 or self._waiting.size >= _GATHER_BYTES:
                self._news.notify()

    def _work(self) -> None:
        while lines := self._gathered():
            unwritten: dict[int, RecordingFile] = {}
            for line in lines:
                self._guarded(line.file, self._take, line)
                unwritten[id(line.file)] = line.file
            for file in unwritten.values():
                self._guarded(file, self._flush, file)
            with self._news:
                self._waiting.size -= sum(line.size for line in lines)

    def _gathered(self) -> Sequence[_Line]:
        """The next lines, as soon as it is worth it; none when the writer is closed and empty."""
        waiting = self._waiting
        with self._news:
            while not waiting.lines and not waiting.closing:
                self._news.wait()
            if not waiting.closing and waiting.size < _GATHER_BYTES:
                self._news.wait(_GATHER_S)
            lines = tuple(waiting.lines)
            waiting.lines.clear()
            return lines

    def _guarded(self, file: RecordingFile, work: Callable[[T], None], of: T) -> None:
        try:
            work(of)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with a recording is no run's matter)
            self._lose(file, error)

    def _take(self, line: _Line) -> None:
        file = line.file
        if file.done:
            return
        if line.cut is not None:
            self._end(file, line.cut)
            return
        data = line.build() + b"\n"
        if file.size + len(data) > self._max_file_bytes - _CUT_ROOM:
            self._end(file, FILE_LIMIT)
            return
        self._add(file, data)
        if line.last:
            self._finish(file)

    def _end(self, file: RecordingFile, reason: str) -> None:
        """Cuts a file. One that has not even begun is not made."""
        if not file.size:
            file.done = True
            return
        self._add(file, dumps_bytes({"type": "cut", "reason": reason}) + b"\n")
        self._finish(file)

    def _add(self, file: RecordingFile, data: bytes) -> None:
        file.size += len(data)
        file.unwritten += data
        if len(file.unwritten) >= _GATHER_BYTES:
            self._flush(file)

    def _flush(self, file: RecordingFile) -> None:
        if not file.unwritten:
            return
        data, file.unwritten = bytes(file.unwritten), bytearray()
        if file.name is None:
            file.name = self._folder.create(file.stem, data)
        else:
            self._folder.append(file.name, data)

    def _finish(self, file: RecordingFile) -> None:
        self._flush(file)
        assert file.name is not None
        file.done = True
        file.name = self._folder.finish(file.name)
        self._warned = False

    def _lose(self, file: RecordingFile, error: Exception) -> None:
        """Gives a recording up and frees its room. Said once until one succeeds again."""
        file.done = True
        file.unwritten = bytearray()
        if file.name is not None:
            self._folder.discard(file.name)
        if not self._warned:
            self._warned = True
            reason = error.strerror if isinstance(error, OSError) else None
            get_logger().warning("harness_recording_failed", error=reason or error_text(error))


def _nothing() -> bytes:
    return b""
