"""Pages of lines of large files: one pass counts the lines, later pages go straight to their place.

A line end is one byte in UTF-8 and part of no other character, so lines are found in bytes and decoded one by
one. Memory does not grow with the file: of each line at most 8 KiB are kept, of each file one number for a
mebibyte.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.sandbox_manager.contract import LineRange
from services.sandbox_manager.text import decode

CHUNK_BYTES: Final = 1024 * 1024
LINE_BYTES: Final = 8 * 1024
"""Of a longer line this much is kept: enough for the 2,000 units that are ever shown."""
KEPT_INDEXES: Final = 32
"""Files of a workspace whose lines are remembered."""
CLOCK_STEP_NS: Final = 20_000_000
"""Longer than a kernel's clock for files stands still: a file that was changed later than this before it was
read may change again without its times showing it, and isn't remembered."""

Read = Callable[[int, int], bytes]
"""At most so many bytes from an offset; none at the end."""


@dataclass(frozen=True, slots=True)
class LineIndex:
    """Where the lines of a file are: `before[i]` line ends stand before the i-th mebibyte."""

    before: array[int]
    total: int
    """Lines; what stands after the last line end counts as one."""

    def chunk_of(self, line: int) -> int:
        """The chunk in which a line (from 0) begins, or in which the line end before it stands."""
        return max(bisect_left(self.before, line) - 1, 0)


@dataclass(frozen=True, slots=True)
class _Identity:
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> _Identity:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def settled_before(self, now_ns: int) -> bool:
        """Any change from now on would show in the times."""
        return max(self.modified_ns, self.changed_ns) < now_ns - CLOCK_STEP_NS


class LineIndexes:
    """What is remembered of a workspace's files, by device, inode, size and times. For several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Identity, LineIndex] = OrderedDict()
        self._lock = threading.Lock()

    def read_lines(self, descriptor: int, read: Read, start: int, stop: int) -> LineRange:
        """Lines `start` to before `stop` of an open file, and how many it has.

        `read` raises what ends the reading.
        """
        before = _Identity.of(os.fstat(descriptor))
        index = self._get(before)
        if index is not None:
            return LineRange(_page(index, read, start, stop), index.total)
        began_ns = time.time_ns()
        index, lines = _scan(read, start, stop)
        if before == _Identity.of(os.fstat(descriptor)) and before.settled_before(began_ns):
            self._keep(before, index)
        return LineRange(lines, index.total)

    def _get(self, identity: _Identity) -> LineIndex | None:
        with self._lock:
            index = self._kept.get(identity)
            if index is not None:
                self._kept.move_to_end(identity)
            return index

    def _keep(self, identity: _Identity, index: LineIndex) -> None:
        with self._lock:
            self._kept[identity] = index
            if len(self._kept) > KEPT_INDEXES:
                self._kept.popitem(last=False)


class _Page:
    """Gathers lines `start` to before `stop` while chunks go by."""

    def __init__(self, number: int, start: int, stop: int) -> None:
        self.number = number
        self.lines: list[str] = []
        self._start = start
        self._stop = stop
        self._pending = bytearray()

    @property
    def full(self) -> bool:
        """All wanted lines are there."""
        return self.number >= self._stop

    @property
    def waits_for_an_end(self) -> bool:
        """Nothing more is wanted of the line that is going by."""
        return self.number < self._start or len(self._pending) >= LINE_BYTES

    def add(self, chunk: bytes) -> int:
        """Goes through a chunk; gives how many line ends it has."""
        ends = chunk.count(b"\n")
        if self.full or self.number + ends < self._start:
            self.number += ends
            return ends
        at = 0
        while not self.full:
            end = chunk.find(b"\n", at)
            if self.number >= self._start and len(self._pending) < LINE_BYTES:
                last = len(chunk) if end < 0 else end
                self._pending += chunk[at : min(last, at + LINE_BYTES)]
            if end < 0:
                return ends
            self._end_line()
            at = end + 1
        self.number += chunk.count(b"\n", at)
        return ends

    def end(self) -> None:
        """What stands after the last line end is a line."""
        self._end_line()

    def _end_line(self) -> None:
        if self._start <= self.number < self._stop:
            self.lines.append(decode(bytes(self._pending[:LINE_BYTES])))
            self._pending.clear()
        self.number += 1


def _scan(read: Read, start: int, stop: int) -> tuple[LineIndex, list[str]]:
    """One pass through the whole file."""
    page = _Page(0, start, stop)
    before = array("Q")
    ends, offset, open_line = 0, 0, False
    while chunk := _whole_chunk(read, offset):
        before.append(ends)
        ends += page.add(chunk)
        offset += len(chunk)
        open_line = not chunk.endswith(b"\n")
    if open_line:
        page.end()
    before.append(ends)
    return LineIndex(before, ends + open_line), page.lines


def _page(index: LineIndex, read: Read, start: int, stop: int) -> list[str]:
    """The lines alone, from the place where they begin."""
    stop = min(stop, index.total)
    if start >= stop:
        return []
    number = index.chunk_of(start)
    page = _Page(index.before[number], start, stop)
    while not page.full:
        chunk = _whole_chunk(read, number * CHUNK_BYTES)
        if not chunk:
            page.end()
            break
        page.add(chunk)
        number += 1
        if page.waits_for_an_end and not page.full:
            # The next line end is known: what stands before it need not be read.
            number = max(number, index.chunk_of(page.number + 1))
    return page.lines


def _whole_chunk(read: Read, offset: int) -> bytes:
    """A mebibyte from an offset; less only at the end."""
    chunk = read(CHUNK_BYTES, offset)
    while chunk and len(chunk) < CHUNK_BYTES:
        more = read(CHUNK_BYTES - len(chunk), offset + len(chunk))
        if not more:
            break
        chunk += more
    return chunk
