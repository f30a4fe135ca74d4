"""One attempt of a stream effect call: request, accepted, start, replies, result (design 3.3).

A failure before `start` was handed to the channel means that nothing was done. After it nobody knows, and
`CallFailed.started` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2

from gateway.engine.contract import Abort, AbortKind
from gateway.executors.call_metadata import CallMetadata
from gateway.executors.contract import AbortSignal, RunAborted
from gateway.executors.replica import Replica
from gateway.executors.status import CallFailed, Meaning, failure_of
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import Stops, accepted_limit_s, limit_s, note_call
from gateway.executors.watchdog import Watchdog
from services.common import metrics

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]

AnswerT = TypeVar("AnswerT")

ABORT_KINDS: Final = {
    AbortKind.CANCEL: common_pb2.ABORT_KIND_CANCEL,
    AbortKind.SHUTDOWN: common_pb2.ABORT_KIND_SHUTDOWN,
    AbortKind.DEADLINE: common_pb2.ABORT_KIND_DEADLINE,
    AbortKind.OWNERSHIP_LOST: common_pb2.ABORT_KIND_OWNERSHIP_LOST,
}


class StreamMethod:
    """A stream rpc of a service: full path and message types."""

    def __init__(self, path: str, request_type: Any, reply_type: Any) -> None:
        self.path = path
        self.request_type = request_type
        self._serialize = request_type.SerializeToString
        self._parse = reply_type.FromString
        self._name = f"stream {path}"

    def on(self, replica: Replica) -> Any:
        """The callable of a channel, made once per replica."""
        made = replica.callables.get(self._name)
        if made is None:
            made = replica.callables[self._name] = replica.channel.stream_stream(
                self.path, request_serializer=self._serialize, response_deserializer=self._parse
            )
        return made


class StreamCall(Generic[AnswerT]):
    """One stream. `handle` is given each reply that is neither queued nor accepted, and gives the answer."""

    def __init__(
        self,
        method: StreamMethod,
        replica: Replica,
        metadata: CallMetadata,
        *,
        signal: AbortSignal,
        stops: Stops,
        timings: ExecutorTimings,
        service: str,
        handle: Callable[[StreamCall[AnswerT], Any], Awaitable[AnswerT | None]],
        silence_s: float | None = None,
    ) -> None:
        self._type = method.request_type
        self._path = method.path
        self._replica = replica
        self._signal = signal
        self._stops = stops
        self._timings = timings
        self._service = service
        self._handle = handle
        self._silence_s = timings.silence if silence_s is None else silence_s
        self._call = method.on(replica)(metadata=metadata)
        self._dog = Watchdog(self._call)
        self._writing = asyncio.Lock()
        self._aborting: asyncio.Task[None] | None = None
        self.started = False

    async def run(self, first: Any) -> AnswerT:
        """The answer; `first` is the first message, which holds the request.

        Raises CallFailed, and RunAborted when an abort of a kind that `stops` ended it before the start.
        After the start such an abort is sent in band, and the peer's own end is awaited for 10 s.
        """
        answer: AnswerT | None = None
        began, status = time.perf_counter(), "CANCELLED"
        forget = self._signal.listen(self._on_abort)
        self._replica.enter()
        try:
            self._dog.arm(self._silence_s)
            await self._call.write(first)
            limit = accepted_limit_s(await self._call.initial_metadata(), self._timings)
            if limit is not None:
                await self._start(limit)
            else:
                self._dog.arm(self._silence_s)
            answer = await self._read()
            status = "OK"
        except CallFailed as failure:
            status = "UNKNOWN"
            raise self._failed(failure) from None
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise self._failed(failure_of(error, self._service)) from None
        except asyncio.CancelledError:
            if self._dog.was_cancelled_by_others():
                raise
            if self._dog.reason == "aborted" and self._signal.abort is not None:
                raise RunAborted(self._signal.abort) from None
            if self._dog.reason == "late":
                late = CallFailed(Meaning.LOST, f"The {self._service} said nothing in time.")
                raise self._failed(late) from None
            raise
        finally:
            forget()
            if self._aborting is not None:
                self._aborting.cancel()
            if answer is None:
                self._call.cancel()
            self._leave_with_status()
            if metrics.current.enabled:
                note_call(self._path, began, status)
        return answer

    def _leave_with_status(self) -> None:
        """The call is over when its status is here: it follows the answer at once, and nobody waits for it."""
        if self._call.done():
            self._left(self._call)
        else:
            self._dog.arm(self._timings.give_up)
            self._call.add_done_callback(self._left)

    def _left(self, call: Any) -> None:
        del call
        self._dog.disarm()
        self._replica.leave()

    async def send(self, **part: Any) -> None:
        """Sends one more request message, for instance `ack=…`. A peer that is gone is found by reading."""
        async with self._writing:
            try:
                await self._call.write(self._type(**part))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return

    async def _start(self, limit: float) -> None:
        if self._dog.reason is not None:
            return
        self.started = True
        self._dog.arm(limit)
        await self.send(start=common_pb2.Start())

    async def _read(self) -> AnswerT:
        while True:
            reply = await self._call.read()
            if reply is _EOF:
                raise CallFailed(Meaning.LOST, f"The {self._service} ended without an answer.")
            if not self.started:
                self._dog.arm(self._silence_s)
            kind = reply.WhichOneof("message")
            if kind == "queued":
                continue
            if kind == "accepted":
                if not self.started:
                    await self._start(limit_s(reply.accepted.limit_ms, self._timings))
            else:
                answer = await self._handle(self, reply)
                if answer is not None:
                    return answer

    def _on_abort(self, abort: Abort) -> None:
        if not self._stops(abort.kind):
            return
        if not self.started:
            self._dog.stop("aborted")
            return
        message = common_pb2.Aborted(kind=ABORT_KINDS[abort.kind])
        self._aborting = asyncio.ensure_future(self.send(abort=message))
        self._dog.arm(self._timings.abort_answer)

    def _failed(self, failure: CallFailed) -> CallFailed:
        failure.started = self.started and failure.meaning is not Meaning.NOT_STARTED
        return failure
