"""The runs that are held over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from gateway.connection import Connection, Reply
from gateway.engine.contract import Abort, AbortKind
from gateway.harness_api.events import MessageArrived
from gateway.runs.host import Identity, RunHost
from gateway.runs.run import Run, abort_of
from gateway.runs.transcript_cache import TranscriptCache
from protocol.methods import CancelMessage, EffectResolvedMessage, LeaseResult


class LiveRuns:
    """Starts runs, hands them core's messages, and knows when the last one has ended.

    `freed` is called after each end.
    """

    def __init__(self, host: RunHost, connection: Connection, freed: Callable[[], None]) -> None:
        self._host = host
        self._connection = connection
        self._freed = freed
        self._cache = TranscriptCache()
        self._runs: dict[str, Run] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._runs)

    def start(self, reply: Reply, identity: Identity, renew_every_s: float) -> None:
        """Starts the run of a lease's answer."""
        lease: LeaseResult = reply.result
        run = Run(
            self._host,
            self._connection,
            lease,
            plain=reply.plain,
            identity=identity,
            cache=self._cache,
            renew_every_s=renew_every_s,
            ended=self._ended,
        )
        self._runs[run.run_id] = run
        self._empty.clear()

    def message(self, message: MessageArrived) -> None:
        """A message of core's about a run; one that is not held is no matter."""
        params = message.params
        run = self._runs.get(params.run_id)
        if run is None:
            return
        if isinstance(params, CancelMessage):
            text = None if params.message is UNSET else params.message
            run.abort(abort_of(AbortKind(params.reason), text))
        elif isinstance(params, EffectResolvedMessage):
            run.resolved(params, message.plain)

    def abort_all(self, abort: Abort) -> None:
        """Aborts every run that has no abort yet."""
        for run in list(self._runs.values()):
            run.abort(abort)

    async def ended(self, limit_s: float) -> bool:
        """Waits until no run is left, at most `limit_s`; False when some are left."""
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def facts(self) -> list[dict[str, Any]]:
        """What may be shown of the runs, the oldest first."""
        return [run.facts() for run in self._runs.values()]

    def _ended(self, run: Run) -> None:
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]
        self._host.ended.add(run.facts(), run.outcome)
        if not self._runs:
            self._empty.set()
        self._freed()
