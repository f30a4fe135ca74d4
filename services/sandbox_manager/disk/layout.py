"""Where workspaces lie on the disk: `<root>/<key>/workspace` and `<root>/<key>/tmp` (sandbox-manager 16.3).

The folder of a key can't be written by the user that commands run as, so that nothing is ever made beside
the two, whatever path or link a command thinks of.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.tree import delete_folder, empty_folder, give_tree
from services.sandbox_manager.diskfile import sync_folder

_T = TypeVar("_T")

TRASH: Final = ".removed"
"""Where removed workspaces wait for their deletion."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE: Final = 0o700
_SEALED: Final = 0o500
_SEALED_FROM_USER: Final = 0o755
_INNER_MODE: Final = 0o700


@dataclass(frozen=True, slots=True)
class Place:
    """An opened workspace on the disk. `folder` is an O_PATH descriptor; `close` gives it back."""

    key: str
    path: Path
    folder: int

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.folder)


class Layout:
    """The folders of one root. Blocking; root's own rights are used, so never hand it paths of commands."""

    def __init__(self, root: Path, identity: Identity | None) -> None:
        self.root = root
        self.identity = identity

    def open(self, key: str) -> Place:
        """Makes the folders of a workspace that lacks them, empties its tmp. Raises BackendError."""
        return self._guard("opened", lambda: self._open(key))

    def empty_tmp(self, key: str) -> None:
        """Deletes what is in a workspace's tmp; it need not exist. Raises BackendError."""
        self._guard("stopped", lambda: self._empty_tmp(key))

    def remove(self, key: str) -> None:
        """Deletes a workspace; an absent one is fine. Raises BackendError.

        It is renamed first: from then on it is gone, whatever happens to the deletion.
        """
        self._guard("removed", lambda: self._remove(key))

    def keys(self, prefix: str) -> list[str]:
        """Keys that begin with a prefix, sorted. Raises BackendError."""
        return self._guard("listed", lambda: self._keys(prefix))

    def prepare(self) -> None:
        """Opens the root to the workspaces' user, ends deletions that an earlier process did not.

        Raises BackendError.
        """
        self._guard("cleaned", self._prepare)

    def _open(self, key: str) -> Place:
        path = self.root / key
        path.mkdir(mode=_PRIVATE, exist_ok=True)
        folder = os.open(path, _FOLDER)
        try:
            os.fchmod(folder, _PRIVATE)
            for name in ("workspace", "tmp"):
                self._open_inner(folder, name)
            os.fchmod(folder, _SEALED if self.identity is None else _SEALED_FROM_USER)
            return Place(key, path, os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder))
        finally:
            os.close(folder)

    def _open_inner(self, folder: int, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, _INNER_MODE, dir_fd=folder)
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            if name == "tmp":
                empty_folder(inner)
            owner = self.identity
            if owner is not None and os.fstat(inner).st_uid != owner.uid:
                give_tree(inner, owner.uid, owner.gid)
        finally:
            os.close(inner)

    def _empty_tmp(self, key: str) -> None:
        try:
            inner = os.open(self.root / key / "tmp", _FOLDER)
        except FileNotFoundError:
            return
        try:
            empty_folder(inner)
        finally:
            os.close(inner)

    def _remove(self, key: str) -> None:
        trash = self.root / TRASH
        trash.mkdir(mode=_PRIVATE, exist_ok=True)
        path = self.root / key
        try:
            # A folder changes its parent only when it can be written itself.
            path.chmod(_PRIVATE)
            path.rename(trash / f"{key}.{secrets.token_hex(4)}")
        except FileNotFoundError:
            return
        for folder in (trash, self.root):
            sync_folder(folder)
        self._purge()

    def _keys(self, prefix: str) -> list[str]:
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
            )

    def _prepare(self) -> None:
        if self.identity is not None:
            # To pass through, not to look around.
            self.root.chmod(stat.S_IMODE(self.root.stat().st_mode) | 0o011)
        self._purge()

    def _purge(self) -> None:
        try:
            trash = os.open(self.root / TRASH, _FOLDER)
        except FileNotFoundError:
            return
        try:
            for name in os.listdir(trash):
                delete_folder(trash, name)
        finally:
            os.close(trash)

    @staticmethod
    def _guard(what: str, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except OSError as error:
            raise BackendError(f"The workspace can't be {what}: {error.strerror}.") from error
