"""The file system that the emulated shell sees: `/workspace` and `/tmp` of one entry, and `/dev/null`.

Every path is resolved by the kernel below the entry's folder (openat2), so that no link leads out of it;
link targets are stored as they are written. The methods are those of the library's `IFileSystem`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from just_bash.types import FsStat

from services.sandbox_manager.disk.openat2 import openat2
from services.sandbox_manager.disk.tree import delete_folder
from services.sandbox_manager.paths import normalize

_T = TypeVar("_T")

NULL: Final = "/dev/null"
_OPEN: Final = os.O_NONBLOCK | os.O_NOCTTY
_COPY_BYTES: Final = 1024 * 1024
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class DirentEntry:
    """One name of a folder, with its kind."""

    name: str
    is_file: bool = False
    is_directory: bool = False
    is_symbolic_link: bool = False


def to_bytes(text: str, encoding: str = "utf-8") -> bytes:
    """Text of the shell as bytes; bytes that were no UTF-8 when they were read come out as they were."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()


def to_text(data: bytes, encoding: str = "utf-8") -> str:
    """The other way."""
    return data.decode(encoding, "surrogateescape")


class EntryFileSystem:
    """One entry. `folder` is an O_PATH descriptor of the folder that holds `workspace` and `tmp`."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._host = os.readlink(f"/proc/self/fd/{folder}")

    def unfollowing(self) -> EntryFileSystem:
        """The same entry, but `stat` tells of links themselves."""
        return _Unfollowing(self._folder)

    # Files

    async def read_file(self, path: str, encoding: str = "utf-8") -> str:
        """The text of a file."""
        return to_text(await self.read_file_bytes(path), encoding)

    async def read_file_bytes(self, path: str) -> bytes:
        """The bytes of a regular file."""
        if normalize(path) == NULL:
            return b""
        return self._get(path)

    async def write_file(self, path: str, content: str | bytes, encoding: str = "utf-8") -> None:
        """Overwrites a file or makes it; its folder must exist."""
        self._put(path, content, encoding, append=False)

    async def append_file(self, path: str, content: str | bytes, encoding: str = "utf-8") -> None:
        """Adds to the end of a file."""
        self._put(path, content, encoding, append=True)

    async def cp(self, src: str, dest: str, recursive: bool = False) -> None:
        """Copies a file, or a folder with what it holds; links below a folder are copied as links."""
        found = self._stat(src, follow=True)
        if not stat.S_ISDIR(found.st_mode):
            self._copy_file(src, dest)
            return
        if not recursive:
            raise IsADirectoryError("Is a directory")
        left = [(normalize(src), normalize(dest))]
        if (left[0][1] + "/").startswith(left[0][0] + "/"):
            raise OSError("Cannot copy a directory into itself")
        while left:
            source, target = left.pop()
            if not await self.is_directory(target):
                await self.mkdir(target)
            for entry in await self.readdir_with_file_types(source):
                inner = (f"{source}/{entry.name}", f"{target}/{entry.name}")
                if entry.is_directory:
                    left.append(inner)
                elif entry.is_symbolic_link:
                    await self.symlink(await self.readlink(inner[0]), inner[1])
                elif entry.is_file:
                    self._copy_file(*inner)

    async def mv(self, src: str, dest: str) -> None:
        """Renames; between /workspace and /tmp too, which are on one disk."""
        with self._parent(src) as (source, name), self._parent(dest) as (target, fresh):
            _plainly(lambda: os.rename(name, fresh, src_dir_fd=source, dst_dir_fd=target))

    async def rm(self, path: str, recursive: bool = False, force: bool = False) -> None:
        """Deletes a file, a link, or a folder; a folder that holds something only with `recursive`."""
        try:
            found = self._stat(path, follow=False)
        except FileNotFoundError:
            if force:
                return
            raise
        with self._parent(path) as (parent, name):
            if not stat.S_ISDIR(found.st_mode):
                _plainly(lambda: os.unlink(name, dir_fd=parent))
            elif recursive:
                _plainly(lambda: delete_folder(parent, name))
            else:
                _plainly(lambda: os.rmdir(name, dir_fd=parent))

    # Folders

    async def mkdir(self, path: str, recursive: bool = False) -> None:
        """Makes a folder; with `recursive` those above it too, and an existing one is fine."""
        if recursive and await self.is_directory(path):
            return
        plain = normalize(path).rstrip("/")
        above = plain.rpartition("/")[0]
        if recursive and above and not await self.is_directory(above):
            await self.mkdir(above, recursive=True)
        with self._parent(plain) as (parent, name):
            _plainly(lambda: os.mkdir(name, _FOLDER_MODE, dir_fd=parent))

    async def readdir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        return [entry.name for entry in await self.readdir_with_file_types(path)]

    async def readdir_with_file_types(self, path: str) -> list[DirentEntry]:
        """The names in a folder with their kinds, sorted by their bytes."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                found = [
                    DirentEntry(
                        entry.name,
                        entry.is_file(follow_symlinks=False),
                        entry.is_dir(follow_symlinks=False),
                        entry.is_symlink(),
                    )
                    for entry in entries
                ]
        finally:
            os.close(descriptor)
        return sorted(found, key=lambda entry: os.fsencode(entry.name))

    # Facts

    async def exists(self, path: str) -> bool:
        """There is something at the end of all links."""
        return normalize(path) == NULL or self._mode(path) is not None

    async def is_file(self, path: str) -> bool:
        """It is a regular file."""
        mode = self._mode(path)
        return mode is not None and stat.S_ISREG(mode)

    async def is_directory(self, path: str) -> bool:
        """It is a folder."""
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    async def stat(self, path: str) -> FsStat:
        """Facts of what a path leads to."""
        if normalize(path) == NULL:
            return FsStat(mode=0o666)
        return _facts(self._stat(path, follow=True))

    async def lstat(self, path: str) -> FsStat:
        """Facts of a name itself, also when it is a link."""
        if normalize(path) == NULL:
            return FsStat(mode=0o666)
        return _facts(self._stat(path, follow=False))

    async def chmod(self, path: str, mode: int) -> None:
        """Changes the permissions of what a path leads to; never to another user's rights."""
        descriptor = self._open(path, os.O_RDONLY)
        try:
            _plainly(lambda: os.fchmod(descriptor, mode & 0o777))
        finally:
            os.close(descriptor)

    async def utimes(self, path: str, atime: float, mtime: float) -> None:
        """Changes the times of what a path leads to."""
        descriptor = self._open(path, os.O_RDONLY)
        try:
            _plainly(lambda: os.utime(descriptor, (atime, mtime)))
        finally:
            os.close(descriptor)

    # Links

    async def symlink(self, target: str, link_path: str) -> None:
        """Makes a link that holds `target` as it is written."""
        with self._parent(link_path) as (parent, name):
            _plainly(lambda: os.symlink(to_bytes(target), to_bytes(name), dir_fd=parent))

    async def link(self, existing_path: str, new_path: str) -> None:
        """Gives a file a second name."""
        with self._parent(existing_path) as (source, name), self._parent(new_path) as (target, fresh):
            _plainly(
                lambda: os.link(name, fresh, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            )

    async def readlink(self, path: str) -> str:
        """What a link holds."""
        with self._parent(path) as (parent, name):
            return str(_plainly(lambda: os.readlink(name, dir_fd=parent)))

    async def realpath(self, path: str) -> str:
        """The path without links."""
        descriptor = self._open(path, os.O_PATH)
        try:
            host = os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return host[len(self._host) :] or "/"

    def resolve_path(self, base: str, path: str) -> str:
        """A path made absolute, lexically."""
        return normalize(path if path.startswith("/") else f"{base}/{path}").rstrip("/") or "/"

    def get_all_paths(self) -> list[str]:
        """The library's commands don't ask for it."""
        return []

    # Inside

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        # O_PATH takes no other flags beside it.
        given = flags if flags & os.O_PATH else flags | _OPEN
        return _plainly(lambda: openat2(self._folder, to_bytes(normalize(path)), given, mode))

    def _parent(self, path: str) -> _Parent:
        plain = normalize(path).rstrip("/")
        above, _, name = plain.rpartition("/")
        if not name:
            raise PermissionError("Operation not permitted")
        return _Parent(self._open(above or "/", os.O_PATH | os.O_DIRECTORY), name)

    def _stat(self, path: str, *, follow: bool) -> os.stat_result:
        descriptor = self._open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _mode(self, path: str) -> int | None:
        try:
            return self._stat(path, follow=True).st_mode
        except OSError:
            return None

    def _get(self, path: str) -> bytes:
        descriptor = self._open(path, os.O_RDONLY)
        with open(descriptor, "rb", buffering=0) as file:
            _require_regular(descriptor)
            return file.readall()

    def _put(self, path: str, content: str | bytes, encoding: str, *, append: bool) -> None:
        if normalize(path) == NULL:
            return
        data = to_bytes(content, encoding) if isinstance(content, str) else content
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0)
        descriptor = self._open(path, flags, _FILE_MODE)
        with open(descriptor, "wb", buffering=0) as file:
            _require_regular(descriptor)
            _plainly(lambda: _write_all(file.fileno(), data, truncate=not append))

    def _copy_file(self, src: str, dest: str) -> None:
        source = self._open(src, os.O_RDONLY)
        with open(source, "rb", buffering=0) as reader:
            _require_regular(source)
            mode = stat.S_IMODE(os.fstat(source).st_mode) & 0o777
            target = self._open(dest, os.O_WRONLY | os.O_CREAT, mode)
            with open(target, "wb", buffering=0):
                _require_regular(target)
                if os.path.sameopenfile(source, target):
                    raise OSError("The two are the same file")
                os.ftruncate(target, 0)
                while data := reader.read(_COPY_BYTES):
                    _append(target, data)


class _Unfollowing(EntryFileSystem):
    """An entry whose `stat` is `lstat`."""

    async def stat(self, path: str) -> FsStat:
        """Facts of a name itself."""
        return await self.lstat(path)


class _Parent:
    """An open folder and a name in it."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> tuple[int, str]:
        return self._folder, self._name

    def __exit__(self, *error: object) -> None:
        os.close(self._folder)


def _write_all(descriptor: int, data: bytes, *, truncate: bool) -> None:
    if truncate:
        os.ftruncate(descriptor, 0)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _append(descriptor: int, data: bytes) -> None:
    _plainly(lambda: _write_all(descriptor, data, truncate=False))


def _require_regular(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("Is a directory")
    if not stat.S_ISREG(mode):
        raise OSError("Not a regular file")


def _facts(found: os.stat_result) -> FsStat:
    return FsStat(
        is_file=stat.S_ISREG(found.st_mode),
        is_directory=stat.S_ISDIR(found.st_mode),
        is_symbolic_link=stat.S_ISLNK(found.st_mode),
        mode=stat.S_IMODE(found.st_mode),
        size=found.st_size,
        mtime=found.st_mtime,
        nlink=found.st_nlink,
    )


def _plainly(work: Callable[[], _T]) -> _T:
    """Lets errors print as a shell prints them: the reason alone."""
    try:
        return work()
    except OSError as error:
        raise type(error)(error.strerror or "Input/output error") from None
