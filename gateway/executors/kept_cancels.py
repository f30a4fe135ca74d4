"""Cancels of remote MCP calls that no mcp-pool could take: kept, and delivered when one answers.

The call lives at the Tool Gate and outlives the pool that sent it, so its cancel must outlive it too. Any
replica can pass it on: the gate knows the call by its effect id.
"""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from typing import Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2

from gateway.executors.call_metadata import plain_metadata
from gateway.executors.contract import RunContext
from gateway.executors.pins import pinned
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import UnaryMethod
from services.common.logs import get_logger

MAX_KEPT: Final = 1000
"""Cancels that wait for a replica at a time; further ones are tried once."""

_PASSING: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class KeptCancels:
    """Owns the cancels that wait. Used on one loop; `close` gives up those that are left."""

    def __init__(self, replicas: ReplicaSet, timings: ExecutorTimings) -> None:
        self._replicas = replicas
        self._timings = timings
        self._method = UnaryMethod(
            f"/{replicas.full_name}/Cancel", common_pb2.CancelRequest, common_pb2.CancelReply
        )
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Cancels that no replica has taken yet."""
        return len(self._waiting)

    async def deliver(self, effect: common_pb2.EffectRef, run: RunContext) -> None:
        """Sends a cancel to the run's replica, at most 3 s; keeps it for 60 s when that can't take it.

        Never fails.
        """
        request = common_pb2.CancelRequest(effect=effect, kind=common_pb2.ABORT_KIND_CANCEL)
        token = run.token()
        replica = pinned(self._replicas, run)
        if replica is not None and await self._taken(replica, request, token):
            return
        if len(self._waiting) >= MAX_KEPT:
            self._lost(request, "too many wait")
            return
        task = asyncio.create_task(self._keep(request, token))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        """Gives up what waits."""
        waiting = set(self._waiting)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)

    async def _keep(self, request: common_pb2.CancelRequest, token: str | None) -> None:
        changed = asyncio.Event()
        forget = self._replicas.listen(changed.set)
        try:
            async with asyncio.timeout(self._timings.keep_cancel):
                for pause in chain(self._timings.resend_pauses, repeat(self._timings.resend_pauses[-1])):
                    await _either(changed, pause)
                    replica = self._replicas.ranked(request.effect.session_id)
                    if replica is not None and await self._taken(replica, request, token):
                        return
        except TimeoutError:
            self._lost(request, "no mcp-pool answered")
        finally:
            forget()

    async def _taken(self, replica: Replica, request: common_pb2.CancelRequest, token: str | None) -> bool:
        """Whether there is nothing left to do: it was delivered, or is refused for good."""
        metadata = plain_metadata(replica, request.effect.session_id, token)
        try:
            await self._method.on(replica)(request, metadata=metadata, timeout=self._timings.cancel)
        except grpc.aio.AioRpcError as error:
            return error.code() not in _PASSING
        except grpc.aio.UsageError:
            return False
        return True

    def _lost(self, request: common_pb2.CancelRequest, why: str) -> None:
        get_logger().warning(
            "harness_cancel_lost",
            sessionId=request.effect.session_id,
            effectId=request.effect.effect_id,
            reason=why,
        )


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, or so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
