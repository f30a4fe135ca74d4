"""Reading and writing inside one workspace: blocking functions, to be called in a file thread.

Paths are absolute and as commands see them. What the system refuses is raised as BackendError, whose text
names the path and nothing of the host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import Final, NamedTuple

from protocol.utf16 import utf16_sort_key
from services.sandbox_manager.contract import BackendError, FileEntry, FileTooLarge, LineRange, Listing
from services.sandbox_manager.disk.lines import CHUNK_BYTES, LineIndexes
from services.sandbox_manager.disk.opening import Opener
from services.sandbox_manager.text import decode, encode

TEXT_BYTES: Final = 256 * 1024 * 1024
"""The largest file that can be edited."""
FILE_LIMIT_S: Final = 60.0
"""How long one file may be read or listed."""

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_OPEN: Final = os.O_NONBLOCK | os.O_NOCTTY
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755


class WorkspaceFiles:
    """The files of one workspace, as an opener finds them."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._indexes = LineIndexes()

    def read_lines(self, path: str, start: int, stop: int) -> LineRange | None:
        """Lines `start` to before `stop`, and how many there are; None when there is no file."""
        descriptor = self._open_file(path)
        if descriptor is None:
            return None
        try:
            return self._indexes.read_lines(descriptor, _Chunks(descriptor, path).at, start, stop)
        finally:
            os.close(descriptor)

    def read_text(self, path: str) -> str | None:
        """The whole file, at most 256 MiB; None when there is none."""
        data = self.read_bytes(path, TEXT_BYTES)
        return None if data is None else decode(data)

    def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        """The whole file; None when there is none. Raises FileTooLarge."""
        descriptor = self._open_file(path)
        if descriptor is None:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size > max_bytes:
                raise FileTooLarge(path, size, max_bytes)
            parts, length = [], 0
            for chunk in _Chunks(descriptor, path):
                parts.append(chunk)
                length += len(chunk)
                if length > max_bytes:
                    raise FileTooLarge(path, length, max_bytes)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write(self, path: str, data: bytes) -> None:
        """Overwrites a regular file or makes it."""
        try:
            descriptor = self._opener.open(encode(path), os.O_WRONLY | os.O_CREAT | _OPEN, _FILE_MODE)
        except OSError as error:
            raise _refused("write", path, error) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BackendError(f"{path} can't be written: it is no regular file.")
            os.ftruncate(descriptor, 0)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view[:CHUNK_BYTES]) :]
        except OSError as error:
            raise _refused("write", path, error) from None
        finally:
            os.close(descriptor)

    def make_folders(self, path: str) -> str | None:
        """Makes a folder and those above it; returns the complaint of `mkdir -p`, or None."""
        made = ""
        parts = [part for part in path.split("/") if part]
        if self._is_folder(path):
            return None
        for part in parts:
            above, made = made or "/", f"{made}/{part}"
            number = self._make_folder(above, part, made)
            if number is not None:
                if number == errno.ENOTDIR and made == "/" + "/".join(parts):
                    number = errno.EEXIST
                return f"mkdir: cannot create directory ‘{made}’: {os.strerror(number)}"
        return None

    def list_files(self, folder: str, max_entries: int) -> Listing | None:
        """Regular files below a folder in the order of their names; links are neither listed nor followed."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _OPEN
        try:
            top = self._opener.open(encode(folder.rstrip("/") or "/"), flags)
        except OSError as error:
            if error.errno in _ABSENT | {errno.ELOOP}:
                return None
            raise _refused("list", folder, error) from None
        try:
            return _walk(self._opener, top, folder, max_entries)
        except OSError as error:
            raise _refused("list", folder, error) from None
        finally:
            os.close(top)

    def _open_file(self, path: str) -> int | None:
        try:
            descriptor = self._opener.open(encode(path), os.O_RDONLY | _OPEN)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _refused("read", path, error) from None
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise BackendError(f"{path} can't be read: it is {kind}.")

    def _is_folder(self, path: str) -> bool:
        try:
            os.close(self._opener.open(encode(path), os.O_PATH | os.O_DIRECTORY))
        except OSError:
            return False
        return True

    def _make_folder(self, above: str, name: str, path: str) -> int | None:
        """The errno of a folder that isn't there and can't be made."""
        try:
            os.close(self._opener.open(encode(path), os.O_PATH | os.O_DIRECTORY))
            return None
        except OSError as error:
            if error.errno != errno.ENOENT:
                return error.errno
        if above == "/" and self._opener.sealed:
            # Only /workspace and /tmp exist; as in the sandbox, nothing can be made beside them.
            return errno.EROFS
        try:
            parent = self._opener.open(encode(above), os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            return error.errno
        try:
            os.mkdir(encode(name), _FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            return None if self._is_folder(path) else errno.EEXIST
        except OSError as error:
            return error.errno
        finally:
            os.close(parent)
        return None


class _Chunks:
    """The bytes of an open file, a mebibyte at a time. Raises BackendError when that takes too long."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._offset = 0
        self._until = time.monotonic() + FILE_LIMIT_S

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        chunk = self.at(CHUNK_BYTES, self._offset)
        if not chunk:
            raise StopIteration
        self._offset += len(chunk)
        return chunk

    def at(self, size: int, offset: int) -> bytes:
        """At most so many bytes from an offset; none at the end."""
        if time.monotonic() > self._until:
            raise BackendError(f"{self._path} could not be read within {FILE_LIMIT_S:.0f} s.")
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise _refused("read", self._path, error) from None


def _walk(opener: Opener, top: int, folder: str, max_entries: int) -> Listing:
    until = time.monotonic() + FILE_LIMIT_S
    entries: list[FileEntry] = []
    # Folders and files that are still to come, the next one last; a folder has no size.
    left: list[_Found] = [_Found(b"", "", None)]
    while left:
        if time.monotonic() > until:
            raise BackendError(f"{folder} could not be listed within {FILE_LIMIT_S:.0f} s.")
        found = left.pop()
        if found.size is None:
            left += reversed(_read_folder(opener, top, found))
            continue
        entries.append(FileEntry(found.shown, found.size))
        if len(entries) > max_entries:
            return Listing(entries, True)
    return Listing(entries, False)


class _Found(NamedTuple):
    raw: bytes
    shown: str
    size: int | None


def _read_folder(opener: Opener, top: int, at: _Found) -> list[_Found]:
    """Regular files and folders of a folder, in the order of their names."""
    descriptor = top
    if at.raw:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _OPEN
        try:
            descriptor = opener.below(top, at.raw, flags)
        except OSError as error:
            if error.errno in _ABSENT | {errno.ELOOP}:  # gone, or no folder any more
                return []
            raise
    try:
        found: list[_Found] = []
        with os.scandir(descriptor) as listed:
            for entry in listed:
                raw = os.fsencode(entry.name)
                shown = decode(raw)
                if entry.is_dir(follow_symlinks=False):
                    found.append(_Found(at.raw + raw + b"/", f"{at.shown}{shown}/", None))
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        size = entry.stat(follow_symlinks=False).st_size
                        found.append(_Found(at.raw + raw, at.shown + shown, size))
    finally:
        if descriptor != top:
            os.close(descriptor)
    return sorted(found, key=lambda item: utf16_sort_key(item.shown.rstrip("/")))


def _refused(what: str, path: str, error: OSError) -> BackendError:
    names = {"read": "read", "write": "written", "list": "listed"}
    return BackendError(f"{path} can't be {names[what]}: {error.strerror}.")
