"""One attempt of a unary effect call.

gRPC's own unary call gives the initial metadata only together with the answer. So where the executor's
limit is long, or not known, the client's side of the call is a stream of one reply (on the wire it is the
same): accepted within 30 s, answered by the executor's limit and 15 s more. Where the limit is known to be
short, one bound for the whole call says as much and costs less.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from gateway.engine.contract import AbortKind
from gateway.executors.call_metadata import CallMetadata
from gateway.executors.contract import AbortSignal, RunAborted
from gateway.executors.replica import Replica
from gateway.executors.status import CallFailed, Meaning, failure_of
from gateway.executors.timings import ExecutorTimings
from gateway.executors.watchdog import Watchdog
from services.common import metrics
from services.common.metadata import ACCEPTED, LIMIT_MS

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]

Stops = Callable[[AbortKind], bool]


class UnaryMethod:
    """A unary rpc of a service: full path and message types."""

    def __init__(self, path: str, request_type: Any, reply_type: Any) -> None:
        self.path = path
        self._serialize = request_type.SerializeToString
        self._parse = reply_type.FromString

    def on(self, replica: Replica) -> Any:
        """The plain callable of a channel, made once per replica."""
        made = replica.callables.get(self.path)
        if made is None:
            made = replica.callables[self.path] = replica.channel.unary_unary(
                self.path, request_serializer=self._serialize, response_deserializer=self._parse
            )
        return made

    def as_stream_on(self, replica: Replica) -> Any:
        """The callable that gives the initial metadata when it comes, made once per replica."""
        name = f"stream of {self.path}"
        made = replica.callables.get(name)
        if made is None:
            made = replica.callables[name] = replica.channel.unary_stream(
                self.path, request_serializer=self._serialize, response_deserializer=self._parse
            )
        return made


async def call_unary(
    method: UnaryMethod,
    replica: Replica,
    request: Any,
    metadata: CallMetadata,
    *,
    signal: AbortSignal,
    stops: Stops,
    timings: ExecutorTimings,
    service: str,
    within_s: float | None = None,
) -> Any:
    """The reply. Raises CallFailed, or RunAborted when an abort of a kind that `stops` came first.

    `within_s` bounds the whole call; None watches for accepted and its limit.
    """
    callable_ = method.as_stream_on(replica) if within_s is None else method.on(replica)
    call = callable_(request, metadata=metadata)
    dog = Watchdog(call)

    def aborted(abort: Any) -> None:
        if stops(abort.kind):
            dog.stop("aborted")

    forget = signal.listen(aborted)
    replica.enter()
    began, status = time.perf_counter(), "CANCELLED"
    try:
        if within_s is not None:
            dog.arm(within_s)
            reply = await call
        else:
            reply = await _watched(call, dog, timings, service)
        status = "OK"
        return reply
    except grpc.aio.AioRpcError as error:
        status = error.code().name
        raise failure_of(error, service) from None
    except asyncio.CancelledError:
        if dog.was_cancelled_by_others():
            raise
        if dog.reason == "aborted" and signal.abort is not None:
            raise RunAborted(signal.abort) from None
        if dog.reason == "late":
            raise CallFailed(Meaning.LOST, f"The {service} said nothing in time.") from None
        raise
    finally:
        forget()
        dog.disarm()
        replica.leave()
        call.cancel()
        if metrics.current.enabled:
            note_call(method.path, began, status)


def note_call(path: str, began: float, status: str) -> None:
    """The time of a call as a metric."""
    metrics.current.record(
        "rpc.client.call.duration",
        time.perf_counter() - began,
        {"rpc.system.name": "grpc", "rpc.method": path.lstrip("/"), "rpc.response.status_code": status},
    )


async def _watched(call: Any, dog: Watchdog, timings: ExecutorTimings, service: str) -> Any:
    dog.arm(timings.silence)
    limit = accepted_limit_s(await call.initial_metadata(), timings)
    if limit is not None:
        dog.arm(limit)
    reply = await call.read()
    if reply is _EOF:
        raise CallFailed(Meaning.FAULT, f"The {service} gave no answer.")
    # The status is here already; reading it ends the call on both sides.
    await call.read()
    return reply


def accepted_limit_s(metadata: Any, timings: ExecutorTimings) -> float | None:
    """When to give up on accepted work, in seconds; None when the metadata does not say accepted."""
    accepted, own_limit_ms = False, None
    for name, value in metadata:
        if name == ACCEPTED:
            accepted = value == "1"
        elif name == LIMIT_MS:
            own_limit_ms = value
    return limit_s(own_limit_ms, timings) if accepted else None


def limit_s(limit_ms: str | int | None, timings: ExecutorTimings) -> float:
    """The executor's limit and the margin after it, in seconds."""
    try:
        own = int(limit_ms or 0) / 1000
    except ValueError:
        own = 0.0
    return (own if own > 0 else timings.assumed_limit) + timings.give_up
