"""The folder recordings are kept in: names, modes, limits, and the oldest that make room for new ones.

Used by one thread. Raises OSError for what the file system refuses.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.recording.format import PARTIAL_SUFFIX, SUFFIX

MAX_FILES: Final = 10_000
"""Recordings in a folder; with small runs this is reached before the limit in bytes."""

RESCAN_S: Final = 60.0
"""How old our knowledge of the folder may be when a file is made: other gateways may write there too."""

ABANDONED_S: Final = 24 * 3600.0
"""A recording of another process that nobody wrote to for so long may be dropped like a finished one."""

_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[A-Za-z0-9_.-]{1,100}\.jsonl(?:\.part)?")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_ID: Final = 64
_MAX_TRIES: Final = 100


class FolderFull(OSError):
    """The folder's limit leaves no room although everything that may be dropped was."""


def file_stem(at: str, run_id: str) -> str:
    """A name that sorts by time: `at` is `20260729T101112131Z`; of the id what is safe in a file's name."""
    return f"{at}-{_UNSAFE.sub('_', run_id)[:_MAX_ID] or 'run'}"


class RecordingFolder:
    """One folder. Only files that are named like recordings are counted, and only those are dropped."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_files: int = MAX_FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._names: list[str] = []
        self._busy: set[str] = set()
        self._own: set[str] = set()
        self._total = 0
        self._scanned_at = -RESCAN_S

    def prepare(self) -> None:
        """Makes the folder (mode 0700) if it is missing, and looks what is in it."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", str(self._path))
        self._scan()

    def create(self, stem: str, first: bytes) -> str:
        """A new file (mode 0600) with its first bytes; its name."""
        if self._clock() - self._scanned_at >= RESCAN_S:
            self._scan()
        self._make_room(len(first), files=1)
        for number in range(1, _MAX_TRIES + 1):
            numbered = stem if number == 1 else f"{stem}-{number}"
            name = numbered + PARTIAL_SUFFIX
            if os.path.lexists(self._path / (numbered + SUFFIX)):
                continue
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._path / name, flags, 0o600)
                self._own.add(name)
                self._note(name, 0)
                try:
                    self._write(descriptor, name, first)
                except OSError:
                    self.discard(name)
                    raise
                return name
        raise FileExistsError(17, "no free name is left", stem)

    def append(self, name: str, data: bytes) -> None:
        """Adds to a file of ours. A file that somebody took away is not made again."""
        self._make_room(len(data), files=0)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._write(os.open(self._path / name, flags), name, data)

    def finish(self, name: str) -> str:
        """The file is whole; its new name."""
        final = name.removesuffix(PARTIAL_SUFFIX) + SUFFIX
        os.rename(self._path / name, self._path / final)
        size = self._sizes.get(name, 0)
        self._forget(name)
        self._note(final, size)
        return final

    def discard(self, name: str) -> None:
        """The file is not wanted any more, and frees its room. Never fails."""
        self._forget(name)
        with contextlib.suppress(OSError):
            os.unlink(self._path / name)

    def _write(self, descriptor: int, name: str, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                written = os.write(descriptor, view)
                self._sizes[name] += written
                self._total += written
                view = view[written:]
        finally:
            os.close(descriptor)

    def _make_room(self, size: int, *, files: int) -> None:
        while self._total + size > self._max_bytes or len(self._names) + files > self._max_files:
            oldest = next(
                (name for name in self._names if name not in self._own and name not in self._busy), None
            )
            if oldest is None:
                raise FolderFull(28, "the folder's limit is reached by recordings that are being written")
            self.discard(oldest)

    def _scan(self) -> None:
        now = self._clock()
        sizes: dict[str, int] = {}
        busy: set[str] = set()
        with os.scandir(self._path) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    found = entry.stat(follow_symlinks=False)
                    sizes[entry.name] = found.st_size
                    if entry.name.endswith(PARTIAL_SUFFIX) and now - found.st_mtime < ABANDONED_S:
                        busy.add(entry.name)
        self._sizes, self._busy = sizes, busy
        self._names = sorted(sizes)
        self._total = sum(sizes.values())
        for name in self._own - sizes.keys():
            self._note(name, 0)
        self._scanned_at = now

    def _note(self, name: str, size: int) -> None:
        if name not in self._sizes:
            bisect.insort(self._names, name)
        self._total += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _forget(self, name: str) -> None:
        self._own.discard(name)
        self._busy.discard(name)
        if name in self._sizes:
            self._total -= self._sizes.pop(name)
            del self._names[bisect.bisect_left(self._names, name)]
