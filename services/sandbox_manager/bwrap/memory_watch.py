"""Ends commands that take too much memory, where no control groups can do it: one watch for all sandboxes.

The processes of a sandbox are those below its first one. What they hold together is measured as the kernel
shares it out (proportional set size), so that memory shared by several counts once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from services.common.latch import Latch
from services.sandbox_manager.kills import KILLED, Kill

LOOK_EVERY_S: Final = 0.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PARENT, _RESIDENT = 1, 21
"""Places in `/proc/<pid>/stat` after the name."""


@dataclass(slots=True, eq=False)
class _Watched:
    first: int
    limit: int
    overdrawn: Latch[Kill] = field(default_factory=Latch)


class MemoryWatch:
    """Looks at all processes of the machine ten times a second while commands run."""

    def __init__(self) -> None:
        self._watched: set[_Watched] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def command(self, first: int, limit: int) -> AsyncIterator[Latch[Kill]]:
        """Watches a sandbox whose first process this is; gives what is set when it is to be killed.

        `limit` is in bytes.
        """
        watched = _Watched(first, limit)
        self._watched.add(watched)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield watched.overdrawn
        finally:
            self._watched.discard(watched)
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            limits = {watched.first: watched.limit for watched in self._watched}
            over = await asyncio.to_thread(sandboxes_over, limits)
            for watched in self._watched:
                if watched.first in over:
                    watched.overdrawn.set(_too_much(watched.limit))


def sandboxes_over(limits: Mapping[int, int]) -> set[int]:
    """Of the given first processes those that hold, with all below them, more bytes than their limit."""
    below: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            facts = _stat(int(name))
            if facts is not None:
                below.setdefault(facts[0], []).append(int(name))
                resident[int(name)] = facts[1]
    return {first for first, limit in limits.items() if _is_over(first, limit, below, resident)}


def _is_over(first: int, limit: int, below: Mapping[int, list[int]], resident: Mapping[int, int]) -> bool:
    processes, left = [], [first]
    while left:
        process = left.pop()
        processes.append(process)
        left += below.get(process, ())
    # Resident pages are told at once; how they are shared takes the kernel a walk through all of them.
    if sum(resident.get(process, 0) for process in processes) <= limit:
        return False
    total = 0
    for process in processes:
        total += _share(process)
        if total > limit:
            return True
    return False


def _stat(process: int) -> tuple[int, int] | None:
    """The parent and the resident bytes."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[_PARENT]), int(fields[_RESIDENT]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _share(process: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _too_much(limit: int) -> Kill:
    return Kill(KILLED, f"The command took more than {limit >> 20} MiB of memory and was killed.")
