"""`grep -rnE` and `find -type f` over one entry, printed as GNU grep 3.8 and find print it.

Files come in the byte order of their paths, on every system alike. Text is as the emulated shell has it:
undecodable bytes are lone surrogates.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from services.sandbox_manager.disk.openat2 import openat2
from services.sandbox_manager.emulated.filesystem import to_bytes, to_text
from services.sandbox_manager.emulated.posix_regex import BadPattern, Matcher, compile_patterns

BUFFER_BYTES: Final = 96 * 1024
"""What grep reads at once: a NUL byte makes a file binary from the buffer on in which it is found."""
LINE_CHARACTERS: Final = 16 * 1024
"""Of a longer line only this much is printed; the tool shows less."""
COMPLAINT_CHARACTERS: Final = 64 * 1024
"""Of complaints only this much is kept."""

_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_CWD: Final = b"/workspace/"
_UNDECODED: Final = re.compile("[\udc80-\udcff]")

Complain = Callable[[str, OSError], None]


@dataclass(frozen=True, slots=True)
class Printed:
    """What a search prints."""

    lines: list[str]
    stderr: str = ""


def grep(
    folder: int, pattern: str, path: str, *, include: str | None, ignore_case: bool, lines: int
) -> Printed:
    """At most `lines` lines that match. `folder` is the entry's descriptor."""
    try:
        matcher = compile_patterns(pattern, ignore_case)
    except BadPattern as error:
        return Printed([], f"grep: {error}\n")
    search = _Search(matcher, lines)
    try:
        top = _open_argument(folder, path)
    except OSError as error:
        search.complain(path, error)
        return search.printed()
    wanted = None if include is None else file_name_pattern(include)
    mode = os.fstat(top).st_mode
    if stat.S_ISDIR(mode):
        for found in walk(top, path if path.endswith("/") else f"{path}/", search.complain):
            if wanted is None or wanted.fullmatch(found.name):
                descriptor = found.open(search.complain)
                if descriptor is not None:
                    search.file(descriptor, found.path, f"{found.path}:")
            if search.full:
                break
    elif stat.S_ISREG(mode) and (wanted is None or _fits_argument(wanted, path)):
        search.file(top, path, "")
    else:
        os.close(top)
    return search.printed()


def find_files(folder: int, root: str, most: int) -> Printed:
    """Paths of at most `most` regular files below a root, without those in `.git` folders."""
    flags = os.O_PATH | (0 if root.endswith("/") else os.O_NOFOLLOW)
    try:
        top = openat2(folder, to_bytes(root), flags)
    except OSError:
        return Printed([])
    try:
        mode = os.fstat(top).st_mode
        if stat.S_ISREG(mode):
            return Printed([root])
        if not stat.S_ISDIR(mode):
            return Printed([])
        opened = os.open(".", _OPEN | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top)
    except OSError:
        return Printed([])
    finally:
        os.close(top)
    found: list[str] = []
    for file in walk(opened, root if root.endswith("/") else f"{root}/", lambda path, error: None):
        if "/.git/" in file.path:
            continue
        found.append(file.path)
        if len(found) == most:
            break
    return Printed(found)


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file: its path as it is printed, its name, and the open folder that it is in."""

    path: str
    name: str
    folder: int

    def open(self, complain: Complain) -> int | None:
        """Opens it; None when that failed or it is no regular file any more."""
        flags = _OPEN | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.name, flags, dir_fd=self.folder)
        except OSError as error:
            if error.errno != errno.ELOOP:
                complain(self.path, error)
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return None


@dataclass(slots=True)
class _Level:
    folder: int
    prefix: str
    left: list[tuple[str, bool]]


def walk(folder: int, prefix: str, complain: Complain) -> Iterator[Found]:
    """Regular files below an open folder (which it closes), in the byte order of their paths."""
    levels = [_Level(folder, prefix, _names(folder))]
    try:
        while levels:
            level = levels[-1]
            if not level.left:
                os.close(levels.pop().folder)
                continue
            name, is_folder = level.left.pop()
            path = level.prefix + name
            if not is_folder:
                yield Found(path, name, level.folder)
                continue
            flags = _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                inner = os.open(name, flags, dir_fd=level.folder)
            except OSError as error:
                complain(path, error)
                continue
            levels.append(_Level(inner, f"{path}/", _names(inner)))
    finally:
        for level in levels:
            os.close(level.folder)


def _names(folder: int) -> list[tuple[str, bool]]:
    """Files and folders, the first one last. A folder stands where the paths in it stand."""
    found: list[tuple[str, bool]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append((entry.name, True))
            elif entry.is_file(follow_symlinks=False):
                found.append((entry.name, False))
    found.sort(key=lambda item: os.fsencode(item[0]) + (b"/" if item[1] else b""), reverse=True)
    return found


@functools.lru_cache(maxsize=64)
def file_name_pattern(pattern: str) -> re.Pattern[str]:
    """A shell pattern as fnmatch reads it without flags: `*` matches a leading dot and a slash too."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            parts.append(".*")
        elif character == "?":
            parts.append(".")
        elif character == "\\" and at < len(pattern):
            parts.append(re.escape(pattern[at]))
            at += 1
        elif character == "[" and (bracket := _BRACKET.match(pattern, at)) is not None:
            negation, inside = bracket[1], bracket[2]
            parts.append(f"[{'^' if negation else ''}{_bracket_content(inside)}]")
            at = bracket.end()
        else:
            parts.append(re.escape(character))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # a range from high to low matches nothing
        return re.compile(r"(?!)")


_BRACKET: Final = re.compile(r"([!^]?)(\]?(?:\[:[a-z]+:\]|[^\]])*)\]")
_NAMED: Final = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
                 "space": r"\s", "xdigit": "0-9A-Fa-f", "punct": r"!-/:-@\[-`{-~"}  # fmt: skip


def _bracket_content(inside: str) -> str:
    escaped = re.sub(r"[\\\[\]^&~|]", lambda match: "\\" + match[0], inside)
    return re.sub(r"\\\[:([a-z]+):\\\]", lambda match: _NAMED.get(match[1], ""), escaped)


def _open_argument(folder: int, path: str) -> int:
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    raw = to_bytes(path)
    return openat2(folder, raw if raw.startswith(b"/") else _CWD + raw, _OPEN)


def _fits_argument(wanted: re.Pattern[str], path: str) -> bool:
    parts = path.split("/")
    return any(wanted.fullmatch("/".join(parts[start:])) for start in range(len(parts)))


class _Search:
    """Lines found so far."""

    def __init__(self, matcher: Matcher, most: int) -> None:
        self._matcher = matcher
        self._most = most
        self._lines: list[str] = []
        self._complaints = [f"grep: warning: {warning}\n" for warning in matcher.warnings]

    @property
    def full(self) -> bool:
        """Nobody reads more."""
        return len(self._lines) >= self._most

    def printed(self) -> Printed:
        """All of it."""
        return Printed(self._lines, "".join(self._complaints)[:COMPLAINT_CHARACTERS])

    def complain(self, path: str, error: OSError) -> None:
        """Notes a file or folder that can't be read."""
        self._complaints.append(f"grep: {path}: {error.strerror}\n")

    def file(self, descriptor: int, path: str, label: str) -> None:
        """Searches an open file, which it closes."""
        number, suppressed = 0, False
        with open(descriptor, "rb", buffering=0) as file:
            try:
                for lines, binary in _blocks(file.fileno()):
                    for line in lines:
                        number += 1
                        if not self._matcher.matches(line):
                            continue
                        if binary:
                            self._complaints.append(f"grep: {path}: binary file matches\n")
                            return
                        if _UNDECODED.search(line) is not None:
                            suppressed = True
                            continue
                        self._lines.append(f"{label}{number}:{line[:LINE_CHARACTERS]}")
                        if self.full:
                            return
            except OSError as error:
                self.complain(path, error)
        if suppressed:
            self._complaints.append(f"grep: {path}: binary file matches\n")


def _blocks(descriptor: int) -> Iterator[tuple[list[str], bool]]:
    """The lines of a file, and whether it counts as binary from here on."""
    parts: list[bytes] = []
    binary = False
    while data := os.read(descriptor, BUFFER_BYTES):
        binary = binary or b"\0" in data
        if binary:
            data = data.replace(b"\0", b"\n")
        end = data.rfind(b"\n")
        if end < 0:
            parts.append(data)
            continue
        parts.append(data[:end])
        yield to_text(b"".join(parts)).split("\n"), binary
        parts = [data[end + 1 :]] if end + 1 < len(data) else []
    if parts:
        yield to_text(b"".join(parts)).split("\n"), binary
