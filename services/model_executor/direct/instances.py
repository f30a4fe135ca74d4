"""Which processes that share a store are alive: each holds a lock file beside it for as long as it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".lock"
_MAX_ADDRESS: Final = 512


class Instances:
    """The lock files beside a store's file, one a process; each one's content is the process's address."""

    def __init__(self, store: Path, own: str) -> None:
        self._store = store
        self.own = own
        self._held = -1

    def enter(self, address: str) -> None:
        """Takes the own lock and notes the address. Raises OSError."""
        path = self._path(self.own)
        while self._held < 0:
            held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(held, fcntl.LOCK_EX)
                # Somebody who found it before it was locked has taken it for a dead one's and removed it.
                if os.fstat(held).st_nlink:
                    self._held, held = held, -1
            finally:
                if held >= 0:
                    os.close(held)
        self.announce(address)

    def announce(self, address: str) -> None:
        """Notes the address. Raises OSError."""
        if self._held >= 0:
            os.ftruncate(self._held, 0)
            os.pwrite(self._held, address.encode("utf-8", "replace")[:_MAX_ADDRESS], 0)

    def leave(self) -> None:
        """Lets the own lock go."""
        if self._held >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path(self.own))
            os.close(self._held)
            self._held = -1

    def lives(self, instance: str) -> bool:
        """Whether a process, this one included, holds its lock. The file of a dead one is removed."""
        if instance == self.own:
            return self._held >= 0
        path = self._path(instance)
        try:
            found = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            return True
        finally:
            os.close(found)
        return False

    def address(self, instance: str) -> str:
        """Where a living process listens; empty when it doesn't say."""
        try:
            return self._path(instance).read_bytes()[:_MAX_ADDRESS].decode("utf-8", "replace")
        except OSError:
            return ""

    def sweep(self) -> None:
        """Removes the files of dead ones."""
        prefix = f"{self._store.name}."
        for path in self._store.parent.glob("*" + _SUFFIX):
            if path.name.startswith(prefix):
                self.lives(path.name[len(prefix) : -len(_SUFFIX)])

    def _path(self, instance: str) -> Path:
        return self._store.with_name(f"{self._store.name}.{instance}{_SUFFIX}")
