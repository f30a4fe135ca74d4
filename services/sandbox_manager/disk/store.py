"""The workspaces of one root on the disk, as all drivers share them: folders, threads for their files, the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from services.sandbox_manager.disk.identity import Identity, file_pool
from services.sandbox_manager.disk.layout import Layout, Place
from services.sandbox_manager.disk.watch import DiskLimits, DiskWatch


class WorkspaceDisk:
    """One root. `identity` owns the workspaces when this process is root, and is None otherwise."""

    def __init__(self, root: Path, identity: Identity | None, limits: DiskLimits | None = None) -> None:
        self.root = root
        self.identity = identity
        self.layout = Layout(root, identity)
        self.pool = file_pool(identity)
        self.watch = DiskWatch(root, limits or DiskLimits(), identity)

    async def prepare(self) -> None:
        """Opens the root to the workspaces' user, ends old deletions. Raises BackendError."""
        await asyncio.to_thread(self.layout.prepare)

    async def open(self, key: str) -> Place:
        """Makes the folders of a workspace that lacks them, empties its tmp. Raises BackendError."""
        return await asyncio.to_thread(self.layout.open, key)

    async def remove(self, key: str) -> None:
        """Deletes a workspace; an absent one is fine. Raises BackendError."""
        await asyncio.to_thread(self.layout.remove, key)
        self.watch.forget(key)

    async def keys(self, prefix: str) -> Sequence[str]:
        """Keys that begin with a prefix, sorted. Raises BackendError."""
        return await asyncio.to_thread(self.layout.keys, prefix)

    def close(self) -> None:
        """Ends the threads; no file work may follow."""
        self.pool.shutdown(wait=False)
        self.watch.close()
