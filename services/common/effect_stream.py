"""The server's side of `stream` effect calls: request, queue, accepted, start, result; abort and join.

Design 3.3 and 3.4. Used by mcp-pool and sandbox-manager for work with effects of its own:

* The work's turn comes at once: initial metadata `x-whippletree-accepted: 1` and `x-whippletree-limit-ms`.
  It must wait: plain initial metadata, `queued{position}` at once and every 10 s, then `accepted`.
* `start` begins the work, never before. Whatever ends the call earlier means that nothing was done: the
  effect id is free again.
* Work that began ends in exactly one reply, which is kept for 30 minutes; a second stream with the same
  id gets it, or waits for it.
* `abort` in band names its kind. A stream that breaks means shutdown, once no other stream waits for the
  same work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2

from services.common.calls import Conflict, Fingerprint, Fresh, Joined, Kept, Stale, WorkKey, WorkTable
from services.common.effect_conversation import (
    EOF,
    Conversation,
    Message,
    Replies,
    ReplyT,
    StreamTimings,
    accepted_metadata,
)
from services.common.effect_run import SHUTDOWN, EffectAborted, EffectRaised, EffectRun, Ended
from services.common.errors import FAULT_TEXT, Refused, invalid, unavailable
from services.common.logs import error_text, get_logger
from services.common.work import WorkBook

__all__ = ["EffectStreams", "Message", "Prepared", "Replies", "StreamTimings"]


@dataclass(frozen=True, slots=True)
class Prepared(Generic[ReplyT]):
    """A request that was read and found valid. Preparing it must do nothing.

    `key` None: work that is no effect; it is neither joined nor kept. `fingerprint` tells calls under one
    effect id apart. `epoch` None asks for no epoch. `perform` does the work and gives the final reply;
    None when everything was sent already (and then nothing is kept).
    """

    kind: str
    session_id: str
    key: WorkKey | None
    fingerprint: Fingerprint
    perform: Callable[[EffectRun[ReplyT]], Awaitable[ReplyT | None]]
    epoch: int | None = None


class EffectStreams(Generic[ReplyT]):
    """All streams of one rpc.

    The request messages have a oneof `message` with the parts `request`, `start`, `abort` and, where the
    service has events, `ack`.
    """

    def __init__(
        self,
        replies: Replies[ReplyT],
        book: WorkBook,
        table: WorkTable[EffectRun[ReplyT], ReplyT] | None = None,
        timings: StreamTimings | None = None,
    ) -> None:
        self._replies = replies
        self._book = book
        self._timings = timings or StreamTimings()
        self._table: WorkTable[EffectRun[ReplyT], ReplyT] = table or WorkTable()
        self._runs: set[EffectRun[ReplyT]] = set()
        self._draining = False

    def stop_taking(self) -> None:
        """Refuses new work from now on; joins and kept outcomes are still served."""
        self._draining = True

    def cancel(self, key: WorkKey, kind: int) -> common_pb2.CancelReply.State:
        """Aborts the work of an effect whose stream is gone (or not)."""
        run = self._table.running(key)
        if run is not None:
            self._abort(key, run, kind)
            return common_pb2.CancelReply.STATE_STOPPING
        if self._table.kept(key) is not None:
            return common_pb2.CancelReply.STATE_FINISHED
        return common_pb2.CancelReply.STATE_NOT_HERE

    async def close(self, grace_s: float = 2.0) -> None:
        """Aborts everything as a shutdown, waits for at most `grace_s`, then cancels what is left."""
        self._draining = True
        tasks = [run.task for run in self._runs if run.task is not None]
        for run in list(self._runs):
            run.abort.set(SHUTDOWN)
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=grace_s)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
        if left:
            await asyncio.wait(left, timeout=grace_s)

    async def serve(self, context: Any, prepare: Callable[[Any], Prepared[ReplyT]]) -> None:
        """Serves one stream: call it from a coroutine handler. `prepare` may raise Refused."""
        prepared = prepare(await self._read_request(context))
        run = self._enter(prepared)
        if not isinstance(run, EffectRun):
            await context.send_initial_metadata(accepted_metadata(0))
            with contextlib.suppress(TimeoutError):
                # The same conversation as at the first time: the caller says start, then reads.
                async with asyncio.timeout(self._timings.start_s):
                    await context.read()
            await context.write(run)
            return
        key = prepared.key
        conversation = Conversation(
            context, run, self._replies, self._timings, lambda kind: self._abort(key, run, kind)
        )
        try:
            await conversation.hold()
        finally:
            if conversation.leave():
                self._abort(key, run, SHUTDOWN)

    def _enter(self, prepared: Prepared[ReplyT]) -> EffectRun[ReplyT] | ReplyT:
        key = prepared.key
        if key is None:
            if self._draining:
                raise unavailable("This service is draining.")
            return self._begin(prepared, EffectRun(self._timings.start_s))
        if self._draining and self._table.running(key) is None and self._table.kept(key) is None:
            raise unavailable("This service is draining.")
        entered = self._table.enter(
            key, prepared.fingerprint, lambda: EffectRun(self._timings.start_s), prepared.epoch
        )
        match entered:
            case Fresh(run):
                return self._begin(prepared, run)
            case Joined(run):
                get_logger().info("effect_joined", effectId=key.effect_id, state="running")
                return run
            case Kept(outcome):
                get_logger().info("effect_joined", effectId=key.effect_id, state="finished")
                return outcome
            case Conflict():
                raise invalid("This effect id stands for another call.")
            case Stale():
                raise Refused(
                    grpc.StatusCode.FAILED_PRECONDITION, "A lease with a higher epoch owns this effect."
                )

    def _begin(self, prepared: Prepared[ReplyT], run: EffectRun[ReplyT]) -> EffectRun[ReplyT]:
        self._runs.add(run)
        run.task = asyncio.create_task(self._perform(prepared, run))
        run.task.add_done_callback(lambda _: self._over(run))
        return run

    def _over(self, run: EffectRun[ReplyT]) -> None:
        self._runs.discard(run)
        if not run.over:
            # A task that is cancelled before its first step runs nothing of its body, not even its end.
            run.end(Ended(self._aborted(run.abort.kind or SHUTDOWN)))

    async def _perform(self, prepared: Prepared[ReplyT], run: EffectRun[ReplyT]) -> None:
        key, effect_id = prepared.key, prepared.key.effect_id if prepared.key else ""
        work = run.work = self._book.begin(prepared.kind, prepared.session_id, effect_id, "queued")
        outcome = "completed"
        end: Ended[ReplyT]
        try:
            end = Ended(await prepared.perform(run))
        except EffectAborted as error:
            end, outcome = Ended(self._aborted(error.kind)), "aborted"
        except EffectRaised as error:
            end, outcome = Ended(self._replies.raised(common_pb2.Raised(message=str(error)))), "raised"
        except Refused as error:
            end, outcome = Ended(refused=error), "refused"
        except asyncio.CancelledError:
            # Before the start: the stream is gone or aborted. After it: the service closes.
            kind = run.abort.kind or SHUTDOWN
            end, outcome = Ended(self._aborted(kind)), "aborted"
        except Exception as error:  # noqa: BLE001  (the edge of the work)
            get_logger().error("effect_failed", effectId=effect_id, error=error_text(error))
            end, outcome = self._fault(run), "fault"
        work.end(outcome)
        if key is not None and self._table.running(key) is run:
            if run.begun and end.reply is not None:
                self._table.finish(key, end.reply, end.reply.ByteSize())
            else:
                self._table.forget(key)
        run.end(end)

    def _fault(self, run: EffectRun[ReplyT]) -> Ended[ReplyT]:
        if run.begun:
            return Ended(self._replies.raised(common_pb2.Raised(message=FAULT_TEXT)))
        return Ended(refused=Refused(grpc.StatusCode.INTERNAL, FAULT_TEXT, not_started=True))

    def _aborted(self, kind: int) -> ReplyT:
        return self._replies.aborted(common_pb2.Aborted(kind=kind))  # type: ignore[arg-type]

    def _abort(self, key: WorkKey | None, run: EffectRun[ReplyT], kind: int) -> None:
        """Stops a run: one that has not begun gives its effect id free at once and never begins."""
        run.abort.set(kind)
        if not run.begun and run.task is not None:
            if key is not None and self._table.running(key) is run:
                self._table.forget(key)
            run.task.cancel()

    async def _read_request(self, context: Any) -> Any:
        first = await _read_within(context, self._timings.request_s)
        if first is EOF or first.WhichOneof("message") != "request":
            raise invalid("The first message must be the request.")
        return first.request


async def _read_within(context: Any, seconds: float) -> Any:
    """The first message. Raises Refused when none came; `asyncio.timeout` costs five times as much."""
    task, late = asyncio.current_task(), False
    assert task is not None

    def expire() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, expire)
    try:
        return await context.read()
    except asyncio.CancelledError:
        if late and task.uncancel() == 0:
            raise invalid("No request came.") from None
        raise
    finally:
        timer.cancel()
