"""Calls of remote servers' tools that are in flight here, so that they can be stopped by effect id.

The Tool Gate keeps a call and its outcome under the effect id, so nothing is kept here: a call that is sent
again is sent to the gate again, and joins there (design 3.3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.common.calls import WorkKey
from services.common.effect_run import CANCEL, AbortLatch
from services.common.work import WorkBook
from services.mcp_pool.executor import McpExecutor, ToolCallWork
from services.mcp_pool.session import Session


class RemoteCalls:
    """Runs and stops calls; `book` shows them."""

    def __init__(self, executor: McpExecutor, book: WorkBook) -> None:
        self._executor = executor
        self._book = book
        self._aborts: dict[WorkKey, set[AbortLatch]] = {}

    async def call(self, key: WorkKey, work: ToolCallWork) -> str:
        """The outcome document's text. When cancelled, the gate goes on with the call.

        Raises EffectAborted after `stop` with a kind that ends a remote call, EffectRaised, and CallRefused
        when nothing was sent because too many connections are open.
        """
        shown = self._book.begin("mcp", key.session_id, key.effect_id, "running")
        ended = "aborted"
        try:
            async with self._abort(key) as abort:
                outcome = await self._executor.call(work, abort)
            ended = "completed"
            return outcome
        finally:
            shown.end(ended)

    async def stop(self, key: WorkKey, kind: int) -> bool:
        """Ends the waiting, and for a cancel the call at the gate; whether it was in flight here."""
        aborts = list(self._aborts.get(key, ()))
        for abort in aborts:
            abort.set(kind)
        if kind == CANCEL:
            await self._executor.cancel_at_gate(Session(key.tenant_id, key.session_id), key.effect_id)
        return bool(aborts)

    @asynccontextmanager
    async def _abort(self, key: WorkKey) -> AsyncIterator[AbortLatch]:
        abort = AbortLatch()
        mine = self._aborts.setdefault(key, set())
        mine.add(abort)
        try:
            yield abort
        finally:
            mine.discard(abort)
            if not mine and self._aborts.get(key) is mine:
                del self._aborts[key]
