"""Small files that are whole or absent whatever happens: written beside, synced, renamed, folder synced."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Final

_MODE: Final = 0o600
TEMPORARY_FILES: Final = "*.json*.tmp"
"""Names of what is being written."""
FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that end when somebody makes room."""


class UnreadableFile(Exception):
    """A file is there but can't be read; the text is the system's reason."""


class DiskFile:
    """One file that is only ever replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """The content, or None when there is no file. Raises UnreadableFile."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableFile(error.strerror or type(error).__name__) from error

    async def write(self, data: bytes) -> None:
        """Replaces the content; it is on the disk when this returns, also when the caller was cancelled.

        Raises OSError; the old content then stays.
        """
        writing = asyncio.ensure_future(asyncio.to_thread(replace_file, self.path, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The next write must not begin while this one still uses the temporary name.
            await asyncio.wait([writing])
            raise


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file of mode 0600 through a temporary one in the same folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder last. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
