"""Ends commands that fill the disk: one watch for all commands of a driver.

While a command runs, the free space of the volume is asked often enough that no writer gets far past the
limit, and the workspace is measured every five seconds. Records and other workspaces stay writable.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.common.latch import Latch
from services.common.logs import error_text, get_logger
from services.sandbox_manager.disk.identity import Identity, file_pool
from services.sandbox_manager.disk.usage import disk_usage
from services.sandbox_manager.kills import KILLED, Kill

DEFAULT_FREE_BYTES: Final = 1024**3
DEFAULT_WORKSPACE_BYTES: Final = 5 * 1024**3
SMALL_VOLUME_SHARE: Final = 10
"""Without a setting, not more than this part of a volume is kept free."""
MEASURED_EVERY_S: Final = 5.0
MEASURING_THREADS: Final = 2
FASTEST_BYTES_S: Final = 8 * 1024**3
"""How fast a disk is taken to fill at most; it sets when to look again."""
LOOK_AGAIN_LEAST_S: Final = 0.01
LOOK_AGAIN_MOST_S: Final = 0.5
SEEN_FOR_S: Final = 0.25
"""How old what is known of the volume may be when a command begins."""
SLACK_BYTES: Final = 1024**2
"""What a command may still take that began when too little was free: it may be there to make room."""
SLACK_FILES: Final = 100
LEAST_FILES: Final = 1000
"""Names that must be left on a volume that has a limit on them."""
RESERVE_SHARE: Final = 16
"""The part of the free space that file tools leave for records."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Bytes that stay free on the volume (None: 1 GiB, or a tenth of a smaller volume), and bytes of one
    workspace with its /tmp."""

    free_bytes: int | None = None
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES


@dataclass(frozen=True, slots=True)
class Room:
    """What is left on a volume."""

    free_bytes: int
    free_files: int | None
    least_bytes: int

    @property
    def short(self) -> bool:
        """There is too little left for commands to go on."""
        return self.free_bytes < self.least_bytes or (
            self.free_files is not None and self.free_files < LEAST_FILES
        )

    def less_than(self, before: Room) -> bool:
        """Somebody took more than a little."""
        if self.free_bytes < before.free_bytes - SLACK_BYTES:
            return True
        return (self.free_files or 0) < (before.free_files or 0) - SLACK_FILES

    def look_again_s(self) -> float:
        """When it could be short at the earliest."""
        margin = (self.free_bytes - self.least_bytes) / FASTEST_BYTES_S
        return min(max(margin, LOOK_AGAIN_LEAST_S), LOOK_AGAIN_MOST_S)


@dataclass(slots=True, eq=False)
class _Watched:
    key: str
    folder: int
    began: Room
    measured_s: float
    before: int | None = None
    overdrawn: Latch[Kill] = field(default_factory=Latch)
    measuring: asyncio.Task[None] | None = None
    ended: bool = False

    def has_ended(self) -> bool:
        """The command is over."""
        return self.ended


class DiskWatch:
    """Watches the volume of one root."""

    def __init__(self, root: Path, limits: DiskLimits, identity: Identity | None) -> None:
        self._root = root
        self._limits = limits
        self._identity = identity
        self._pool: ThreadPoolExecutor | None = None
        self._watched: set[_Watched] = set()
        self._over: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._measuring: set[asyncio.Task[None]] = set()
        self._seen: tuple[float, Room] | None = None

    async def has_room_for(self, size: int) -> bool:
        """A file of this size may be written: what records need stays free. Raises OSError."""
        room = await self._look()
        return room.free_bytes - size >= room.least_bytes // RESERVE_SHARE

    @asynccontextmanager
    async def command(self, key: str, folder: int) -> AsyncIterator[Latch[Kill]]:
        """Watches while a command of a workspace runs; gives what is set when it is to be killed.

        `folder` is a descriptor of the workspace's folder. Raises OSError.
        """
        # One that was over the limit is measured at once.
        measured = -math.inf if key in self._over else time.monotonic()
        watched = _Watched(key, folder, await self._room(), measured)
        self._watched.add(watched)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield watched.overdrawn
        finally:
            watched.ended = True
            self._watched.discard(watched)
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    def forget(self, key: str) -> None:
        """A workspace was removed."""
        self._over.discard(key)

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def _room(self) -> Room:
        if self._seen is not None and time.monotonic() - self._seen[0] < SEEN_FOR_S:
            return self._seen[1]
        return await self._look()

    async def _look(self) -> Room:
        # In a thread: the volume may be at the other end of a network.
        room = await asyncio.to_thread(_room, self._root, self._limits)
        self._seen = time.monotonic(), room
        return room

    async def _watch(self) -> None:
        # The command that this begins with has just asked.
        if self._seen is not None:
            await asyncio.sleep(self._seen[1].look_again_s())
        while True:
            again_s = LOOK_AGAIN_MOST_S
            try:
                room = await self._look()
                self._kill_when_short(room)
                again_s = room.look_again_s()
            except OSError as error:
                get_logger().warning("sandbox_disk_not_measured", error=error_text(error))
            self._measure_due()
            await asyncio.sleep(again_s)

    def _kill_when_short(self, room: Room) -> None:
        if room.short:
            for watched in list(self._watched):
                if not watched.began.short or room.less_than(watched.began):
                    watched.overdrawn.set(_full(room.least_bytes))

    def _measure_due(self) -> None:
        now = time.monotonic()
        for watched in self._watched:
            if watched.measuring is None and now - watched.measured_s >= MEASURED_EVERY_S:
                watched.measuring = asyncio.create_task(self._measure(watched))
                self._measuring.add(watched.measuring)
                watched.measuring.add_done_callback(self._measuring.discard)

    async def _measure(self, watched: _Watched) -> None:
        if watched.ended:
            return
        if self._pool is None:
            self._pool = file_pool(self._identity, MEASURING_THREADS)
        # The command may end, and its descriptor with it, before the thread does.
        folder = os.dup(watched.folder)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, _measured, folder, watched.has_ended)
        try:
            used = await work
        except OSError as error:
            get_logger().warning("sandbox_disk_not_measured", error=error_text(error))
        else:
            if used is not None:
                self._judge(watched, used)
        watched.measured_s = time.monotonic()
        watched.measuring = None

    def _judge(self, watched: _Watched, used: int) -> None:
        limit = self._limits.workspace_bytes
        if used <= limit:
            self._over.discard(watched.key)
        elif watched.key not in self._over:
            self._over.add(watched.key)
            watched.overdrawn.set(_grown(limit))
        elif watched.before is None:
            # It was over before this command, which may go on as long as it makes room.
            watched.before = used
        elif used > watched.before:
            watched.overdrawn.set(_grown(limit))


def _room(root: Path, limits: DiskLimits) -> Room:
    facts = os.statvfs(root)
    least = limits.free_bytes
    if least is None:
        least = min(DEFAULT_FREE_BYTES, facts.f_blocks * facts.f_frsize // SMALL_VOLUME_SHARE)
    return Room(facts.f_bavail * facts.f_frsize, facts.f_favail if facts.f_files else None, least)


def _measured(folder: int, stop: Callable[[], bool]) -> int | None:
    try:
        return disk_usage(folder, stop)
    finally:
        os.close(folder)


def _full(least: int) -> Kill:
    return Kill(KILLED, f"The disk has less than {size_text(least)} left: the command was killed.")


def _grown(limit: int) -> Kill:
    return Kill(KILLED, f"The workspace holds more than {size_text(limit)}: the command was killed.")


def size_text(size: int) -> str:
    """A size for people, exact where it is whole."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"
