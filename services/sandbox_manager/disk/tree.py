"""Work on whole trees whose content is not ours: emptying, deleting, giving to another owner.

Every step goes through the descriptor of the folder it is in and never follows a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty_folder(folder: int) -> None:
    """Deletes everything inside an open folder, also where its modes forbid it. Raises OSError."""
    # Depth comes from outside, so descriptors are opened one at a time: a folder is emptied by moving what
    # it holds up to the top, and is then empty itself.
    number = 0
    while True:
        names = os.listdir(folder)
        if not names:
            return
        for name in names:
            if _unlink(folder, name):
                continue
            number = _lift(folder, name, number)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=folder)


def delete_folder(parent: int, name: str) -> None:
    """Deletes a folder with all it holds; an absent one is fine. Raises OSError."""
    try:
        folder = _open_writable(parent, name)
    except FileNotFoundError:
        return
    try:
        empty_folder(folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def give_tree(folder: int, uid: int, gid: int) -> None:
    """Makes a user the owner of an open folder and all below it. Raises OSError."""
    os.fchown(folder, uid, gid)
    left = [os.dup(folder)]
    while left:
        current = left.pop()
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    os.chown(entry.name, uid, gid, dir_fd=current, follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(os.open(entry.name, _FOLDER, dir_fd=current))
        finally:
            os.close(current)


def _unlink(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except PermissionError:
        # What some systems say of a folder.
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        raise
    except FileNotFoundError:
        pass
    return True


def _lift(top: int, name: str, number: int) -> int:
    """Moves what a folder holds into the top folder under fresh names; files are deleted in place."""
    try:
        folder = _open_writable(top, name)
    except (FileNotFoundError, NotADirectoryError):
        return number
    try:
        for inner in os.listdir(folder):
            if _unlink(folder, inner):
                continue
            with contextlib.suppress(FileNotFoundError):
                # A folder changes its parent only when it can be written itself.
                os.close(_open_writable(folder, inner))
                while True:
                    number += 1
                    fresh = f".deleting-{number}"
                    if not _exists(top, fresh):
                        break
                os.rename(inner, fresh, src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    return number


def _open_writable(parent: int, name: str) -> int:
    """Opens a folder and lets its owner do anything in it."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
