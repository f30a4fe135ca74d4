"""The part of a handle that is the same for all drivers whose workspaces are folders of the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

from services.common.latch import Latch
from services.sandbox_manager.contract import BackendError, LineRange, Listing
from services.sandbox_manager.disk.files import WorkspaceFiles
from services.sandbox_manager.disk.layout import Place
from services.sandbox_manager.disk.opening import InFolder
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.kills import Kill
from services.sandbox_manager.paths import WORKSPACE
from services.sandbox_manager.signals import Signal

_T = TypeVar("_T")


class DiskHandle:
    """Files of an open workspace, worked on in the driver's file threads."""

    workspace: Final = WORKSPACE
    created: Final = False

    def __init__(self, place: Place, disk: WorkspaceDisk) -> None:
        self.place = place
        self._disk = disk
        self._files = WorkspaceFiles(InFolder(place.folder))
        self._working = 0
        self._released = False

    async def read_lines(self, path: str, start: int, stop: int) -> LineRange | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_lines(path, start, stop))

    async def read_text(self, path: str) -> str | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_text(path))

    async def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        """See Handle."""
        return await self._work(lambda: self._files.read_bytes(path, max_bytes))

    async def list_files(self, folder: str, max_entries: int) -> Listing | None:
        """See Handle."""
        return await self._work(lambda: self._files.list_files(folder, max_entries))

    async def make_folders(self, path: str, signal: Signal) -> str | None:
        """See Handle."""
        del signal
        return await self._work(lambda: self._files.make_folders(path))

    async def write(self, path: str, data: bytes) -> None:
        """See Handle. What records need of the volume is never taken."""
        try:
            room = await self._disk.watch.has_room_for(len(data))
        except OSError as error:
            raise BackendError(f"{path} can't be written: {error.strerror}.") from error
        if not room:
            raise BackendError(f"{path} can't be written: the disk is full.")
        await self._work(lambda: self._files.write(path, data))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Latch[Kill]]:
        """What stands around a command: gives what is set when it fills the disk. Raises BackendError."""
        if self._released:
            raise BackendError("The workspace was closed.")
        async with AsyncExitStack() as stack:
            try:
                full = await stack.enter_async_context(
                    self._disk.watch.command(self.place.key, self.place.folder)
                )
            except OSError as error:
                raise BackendError(f"The disk can't be measured: {error.strerror}.") from error
            yield full

    async def stop(self) -> None:
        """Empties /tmp: no process of a workspace outlives its command, so there is nothing to end."""
        await self._work(lambda: self._disk.layout.empty_tmp(self.place.key), owner=True)

    def release(self) -> None:
        """See Handle. A descriptor in use by a thread is closed when the thread is done with it."""
        self._released = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._released and self._working == 0:
            self._working = -1
            self.place.close()

    async def _work(self, work: Callable[[], _T], *, owner: bool = False) -> _T:
        if self._released:
            raise BackendError("The workspace was closed.")
        self._working += 1
        # Emptying needs the rights of the manager, everything else those of the workspace's user.
        pool = None if owner else self._disk.pool
        future = asyncio.get_running_loop().run_in_executor(pool, work)
        future.add_done_callback(self._done)
        return await future

    def _done(self, future: object) -> None:
        del future
        self._working -= 1
        self._close_if_unused()
