"""Stops effects by their id, wherever they run. Never fails: "not here" is a normal answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2

from gateway.executors.call_metadata import CallMetadata
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import UnaryMethod


async def cancel_effect(
    replicas: ReplicaSet,
    at: Iterable[Replica],
    effect: common_pb2.EffectRef,
    *,
    kind: common_pb2.AbortKind,
    metadata: CallMetadata,
    timings: ExecutorTimings,
) -> None:
    """Sends Cancel to the given replicas, or to all when none is given; waits for at most 3 s."""
    targets = list(at) or list(replicas.replicas)
    request = common_pb2.CancelRequest(effect=effect, kind=kind)
    calls = [_cancel(replicas.full_name, replica, request, metadata, timings) for replica in targets]
    await asyncio.gather(*calls)


async def _cancel(
    full_name: str,
    replica: Replica,
    request: common_pb2.CancelRequest,
    metadata: CallMetadata,
    timings: ExecutorTimings,
) -> None:
    method = UnaryMethod(f"/{full_name}/Cancel", common_pb2.CancelRequest, common_pb2.CancelReply)
    with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
        await method.on(replica)(request, metadata=metadata, timeout=timings.cancel)
