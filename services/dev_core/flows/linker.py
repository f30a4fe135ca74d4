"""Begins linked turns: after every commit that makes room for one, and at a start of the core."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from services.common.logs import error_text, get_logger
from services.dev_core.clock import now_ms
from services.dev_core.flows.linking import begin_queued
from services.dev_core.store import links
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed

STORE_RETRY_S: Final = 1.0
"""After the database refused to begin a turn."""


class Linker:
    """`at_once` linked turns of one session may run at the same time."""

    def __init__(self, store: Store, at_once: int) -> None:
        self._store = store
        self._at_once = at_once
        self._due: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begins what an earlier process left queued."""
        for session_id in await self._store.read(links.sessions_with_queued):
            self.begin(session_id)

    def begin(self, session_id: str) -> None:
        """Linked turns may begin for the session; what they are is for the database to say."""
        self._due[session_id] = None
        if self._task is None and not self._stopping:
            self._task = self._loop.create_task(self._begin_all())

    async def stop(self) -> None:
        """Begins nothing more: what is queued is begun at the next start."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _begin_all(self) -> None:
        try:
            while self._due:
                session_id = next(iter(self._due))
                del self._due[session_id]
                try:
                    await self._store.write(
                        partial(begin_queued, session_id=session_id, at_once=self._at_once, now_ms=now_ms())
                    )
                except StoreFailed as error:
                    get_logger().error("linked_turn_not_begun", sessionId=session_id, error=error_text(error))
                    self._due[session_id] = None
                    await asyncio.sleep(STORE_RETRY_S)
        finally:
            self._task = None
