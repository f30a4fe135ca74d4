"""How paths of a workspace become open files: confined to a folder, or anywhere where something else confines."""

from __future__ import annotations

import os
from typing import Protocol

from services.sandbox_manager.disk.openat2 import BENEATH, NO_SYMLINKS, openat2


class Opener(Protocol):
    """Opens absolute paths as commands see them. Descriptors are closed on exec. Raises OSError."""

    @property
    def sealed(self) -> bool:
        """Nothing can be made in the root of what commands see."""
        ...

    def open(self, path: bytes, flags: int, mode: int = 0) -> int:
        """Opens a path, through links."""
        ...

    def below(self, top: int, path: bytes, flags: int) -> int:
        """Opens a path below an open folder, through no link."""
        ...


class InFolder:
    """Everything lies in one folder, and no link leads out of it. `folder` is an O_PATH descriptor; it belongs to
    the caller."""

    sealed = True

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def open(self, path: bytes, flags: int, mode: int = 0) -> int:
        """See Opener."""
        return openat2(self._folder, path, flags, mode)

    def below(self, top: int, path: bytes, flags: int) -> int:
        """See Opener."""
        return openat2(top, path, flags, resolve=BENEATH | NO_SYMLINKS)


class Anywhere:
    """The system's own paths, for a manager that is inside of the same boundary as its commands."""

    sealed = False

    def open(self, path: bytes, flags: int, mode: int = 0) -> int:
        """See Opener."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def below(self, top: int, path: bytes, flags: int) -> int:
        """See Opener. Only the last link is refused: whoever plants others may read the files anyway."""
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
