"""The workspaces' upkeep: a regular `workspace.sweep`, and the removal of those whose session was deleted.

Only workspaces of deleted sessions are removed. One that the core does not know (its database is new, or
another core uses the same folder) stays: files outlive everything but their removal.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from protocol.errors import HarnessApiError
from services.common.logs import error_text, get_logger
from services.dev_core.clock import now_ms
from services.dev_core.harness.workspaces import Workspaces
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed, Tx

REQUEST_S: Final = 120.0
"""Of one sweep or removal."""
_KEYS_AT_ONCE: Final = 100


class Sweeper:
    """Owns the timer."""

    def __init__(self, store: Store, workspaces: Workspaces, sweep_ms: int) -> None:
        self._store = store
        self._workspaces = workspaces
        self._sweep_s = sweep_ms / 1000
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to sweep."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends the timer and what it asked."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                async with asyncio.timeout(REQUEST_S):
                    await self._workspaces.request("workspace.sweep", {"now": now_ms()})
                    await remove_due(self._store, self._workspaces)
            except HarnessApiError as error:
                if error.code != "unavailable":
                    get_logger().warning("sweep_failed", error=error_text(error))
            except (TimeoutError, StoreFailed) as error:
                get_logger().warning("sweep_failed", error=error_text(error))


async def remove_due(store: Store, workspaces: Workspaces) -> None:
    """Removes the workspaces of deleted sessions. Raises HarnessApiError and StoreFailed; what is left is
    removed another time."""
    while keys := await store.read(_due):
        await workspaces.request("workspace.remove", {"keys": keys})
        await store.write(partial(_removed, keys=keys))


def _due(tx: Tx) -> list[str]:
    return [row[0] for row in tx.all("SELECT key FROM removals ORDER BY key LIMIT ?", (_KEYS_AT_ONCE,))]


def _removed(tx: Tx, keys: list[str]) -> None:
    for key in keys:
        tx.run("DELETE FROM removals WHERE key = ?", (key,))
