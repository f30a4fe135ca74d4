"""How much of the disk a folder takes whose content is not ours: a blocking walk that follows no link."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from services.sandbox_manager.disk.openat2 import BENEATH, NO_SYMLINKS, openat2

BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's own is."""
LONGEST_PATH: Final = 3000
"""Below a deeper folder the walk goes on from that folder itself: the kernel takes 4,096 bytes as one path."""
MOST_BASES: Final = 64
"""Folders so far below each other; a tree that is deeper still counts as over all limits."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
ENDLESS: Final = 2**62


def disk_usage(folder: int, stop: Callable[[], bool]) -> int | None:
    """Bytes that the files and folders below an open folder take; None when `stop` says so before the end.

    A file with several names counts once. What changes under the walk counts as it is met. Raises OSError.
    """
    walk = _Walk()
    try:
        walk.base(os.open(".", _FOLDER | os.O_CLOEXEC, dir_fd=folder))
        if not walk.run(stop):
            return None
    except _TooDeep:
        return ENDLESS
    finally:
        walk.close()
    return walk.total


class _TooDeep(Exception):
    pass


class _Walk:
    def __init__(self) -> None:
        self.total = 0
        self._seen: set[tuple[int, int]] = set()
        # Each with the folders below it that are still to be read.
        self._bases: list[tuple[int, list[bytes]]] = []

    def base(self, descriptor: int) -> None:
        """Goes on from an open folder, which it closes."""
        self._bases.append((descriptor, [b"."]))
        if len(self._bases) > MOST_BASES:
            raise _TooDeep

    def run(self, stop: Callable[[], bool]) -> bool:
        """Counts; False when it was stopped."""
        while self._bases:
            if stop():
                return False
            descriptor, left = self._bases[-1]
            if not left:
                os.close(self._bases.pop()[0])
                continue
            self._read(descriptor, left.pop(), left)
        return True

    def close(self) -> None:
        """Closes what is open."""
        for descriptor, _ in self._bases:
            os.close(descriptor)
        self._bases.clear()

    def _read(self, base: int, path: bytes, left: list[bytes]) -> None:
        try:
            folder = openat2(base, path, _FOLDER, resolve=BENEATH | NO_SYMLINKS)
        except OSError:
            return  # gone, or closed to us: what is in it was counted when it was open, or can't be seen
        if len(path) > LONGEST_PATH:
            self.base(folder)
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    self._count(entry, path + b"/" + name, left)
        finally:
            os.close(folder)

    def _count(self, entry: os.DirEntry[str], path: bytes, left: list[bytes]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                left.append(path)
        except FileNotFoundError:
            return
        if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
            identity = (found.st_dev, found.st_ino)
            if identity in self._seen:
                return
            self._seen.add(identity)
        self.total += found.st_blocks * BLOCK_BYTES
