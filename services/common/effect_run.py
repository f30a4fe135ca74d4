"""One piece of work with effects of its own, seen from the executor (design 3.3).

The executor writes one coroutine, `perform(run)`. It may wait as long as it likes before
`await run.accept(limit_ms)`, and must not touch the world before that returned: only then has the caller
said `start`. After it the work has begun, and its end is kept whatever happens to the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from whippletree.v1 import common_pb2

from services.common.errors import Refused, unavailable
from services.common.latch import Latch
from services.common.work import Work

ReplyT = TypeVar("ReplyT")

CANCEL = common_pb2.ABORT_KIND_CANCEL
SHUTDOWN = common_pb2.ABORT_KIND_SHUTDOWN


class EffectAborted(Exception):
    """The work was stopped by an abort and has no outcome. `kind` is a value of AbortKind."""

    def __init__(self, kind: int) -> None:
        super().__init__(common_pb2.AbortKind.Name(kind))
        self.kind = kind


class EffectRaised(Exception):
    """The work failed in a way that is not an outcome; the text crosses, so it must hold no secret."""


class AbortLatch(Latch[int]):
    """The abort of one piece of work; the first kind wins."""

    __slots__ = ()

    @property
    def kind(self) -> int | None:
        """The abort, a value of AbortKind; None while there is none."""
        return self.value

    def set(self, kind: int) -> bool:
        """Aborts; an unspecified kind is read as shutdown. False when it was aborted before."""
        return super().set(kind or SHUTDOWN)


class Waiting(msgspec.Struct, frozen=True):
    """Tell the peer that the work waits: `position` pieces of work stand before it."""

    position: int


class TurnCame(msgspec.Struct, frozen=True):
    """Tell the peer that the work's turn has come."""

    limit_ms: int


class Said(msgspec.Struct, Generic[ReplyT], frozen=True):
    """Send this message; `written` is told when it is out (False: the peer is gone)."""

    reply: ReplyT
    written: asyncio.Future[bool] | None = None


class Ended(msgspec.Struct, Generic[ReplyT], frozen=True):
    """The last one: a final message (None: there is none), or a refusal."""

    reply: ReplyT | None = None
    refused: Refused | None = None


News: TypeAlias = Waiting | TurnCame | Said[ReplyT] | Ended[ReplyT]


class Viewer(Generic[ReplyT]):
    """One stream that looks at a run: what it is to be told, in order.

    `on_news` is called whenever something is added to `news`.
    """

    __slots__ = ("_acks", "_answers", "gone", "news", "on_news")

    def __init__(self) -> None:
        self.news: deque[News[ReplyT]] = deque()
        self.on_news: Callable[[], None] = _nothing
        self._acks: dict[int, asyncio.Future[bool]] = {}
        self._answers = True
        self.gone = False

    def put(self, item: News[ReplyT]) -> None:
        """Adds something to tell."""
        self.news.append(item)
        self.on_news()

    def acked(self, seq: int) -> None:
        """The peer answered an event. An unknown number is ignored."""
        future = self._acks.pop(seq, None)
        if future is not None and not future.done():
            future.set_result(True)

    def expect_ack(self, seq: int) -> asyncio.Future[bool]:
        """A future that is told whether the event was answered (False: the peer is gone)."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._answers:
            future.set_result(False)
        else:
            self._acks[seq] = future
        return future

    def deaf(self) -> None:
        """The peer will say nothing more: no event is answered any more."""
        self._answers = False
        for future in self._acks.values():
            if not future.done():
                future.set_result(False)
        self._acks.clear()

    def leave(self) -> None:
        """The stream is over: nobody will write or answer any more."""
        self.gone = True
        self.on_news = _nothing
        self.deaf()
        while self.news:
            item = self.news.popleft()
            if isinstance(item, Said) and item.written is not None and not item.written.done():
                item.written.set_result(False)


class EffectRun(Generic[ReplyT]):
    """The work of one effect id, shared by all streams that ask for it."""

    __slots__ = (
        "_end",
        "_limit_ms",
        "_position",
        "_primary",
        "_start",
        "_start_wait_s",
        "_started",
        "_viewers",
        "abort",
        "begun",
        "task",
        "work",
    )

    def __init__(self, start_wait_s: float) -> None:
        self.abort = AbortLatch()
        self.begun = False
        self.task: asyncio.Task[Any] | None = None
        self.work: Work | None = None
        """What the service's book has of it."""
        self._start_wait_s = start_wait_s
        self._position: int | None = None
        self._limit_ms: int | None = None
        self._started = False
        self._start: asyncio.Future[None] | None = None
        self._end: Ended[ReplyT] | None = None
        self._viewers: list[Viewer[ReplyT]] = []
        self._primary: Viewer[ReplyT] | None = None

    # For the executor.

    def queued(self, position: int) -> None:
        """Says that the work waits behind `position` others; may be called again when that changes."""
        if self._limit_ms is None and position != self._position:
            self._position = position
            for viewer in self._viewers:
                viewer.put(Waiting(position))

    async def accept(self, limit_ms: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Its turn has come: waits for `start`. `limit_ms` is the executor's own limit for the work.

        `meanwhile` is called while that word and its answer travel, for what the work needs once it begins; what
        it raises is raised here.

        Raises EffectAborted when it was stopped before the start, and Refused when no start came in 30 s;
        in both cases nothing may be done.
        """
        if self.abort.kind is not None:
            raise EffectAborted(self.abort.kind)
        self._limit_ms = limit_ms
        if self.work is not None:
            self.work.phase = "accepted"
        came = TurnCame(limit_ms)
        for viewer in self._viewers:
            viewer.put(came)
        if not self._started:
            loop = asyncio.get_running_loop()
            start = self._start = loop.create_future()
            timer = loop.call_later(self._start_wait_s, _too_late, start)
            try:
                if meanwhile is not None:
                    # The streams' own tasks, which send the word, come first.
                    await asyncio.sleep(0)
                    meanwhile()
                await start
            finally:
                timer.cancel()
        elif meanwhile is not None:
            meanwhile()
        if self.abort.kind is not None:
            raise EffectAborted(self.abort.kind)
        self.begun = True
        if self.work is not None:
            self.work.phase = "running"

    async def send(self, reply: ReplyT) -> bool:
        """Sends a message to the stream that started the work and waits until it is written.

        False when that stream is gone; a stream that joined later gets only the end.
        """
        viewer = self._primary
        if viewer is None or viewer.gone:
            return False
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        viewer.put(Said(reply, written))
        return await written

    async def event(self, reply: ReplyT, seq: int, within_s: float) -> bool:
        """Sends a numbered message and waits for its `ack`; False when the stream is gone.

        Raises TimeoutError when none came within `within_s` seconds.
        """
        viewer = self._primary
        if viewer is None or viewer.gone:
            return False
        acked = viewer.expect_ack(seq)
        viewer.put(Said(reply))
        timer = asyncio.get_running_loop().call_later(within_s, _not_answered, acked)
        try:
            return await acked
        finally:
            timer.cancel()

    # For the stream's edge.

    @property
    def position(self) -> int:
        """The last position that was told; 0 when none was."""
        return self._position or 0

    @property
    def over(self) -> bool:
        """It has ended."""
        return self._end is not None

    @property
    def started(self) -> bool:
        """The caller said start."""
        return self._started

    @property
    def accepted(self) -> bool:
        """Its turn has come."""
        return self._limit_ms is not None

    def attach(self, viewer: Viewer[ReplyT]) -> None:
        """A stream begins to look: it is told where the work stands."""
        self._viewers.append(viewer)
        if self._primary is None:
            self._primary = viewer
        if self._limit_ms is not None:
            viewer.put(TurnCame(self._limit_ms))
        elif self._position is not None:
            viewer.put(Waiting(self._position))
        if self._end is not None:
            viewer.put(self._end)

    def detach(self, viewer: Viewer[ReplyT]) -> bool:
        """A stream is over. True when it was the last one of work that goes on."""
        viewer.leave()
        if viewer in self._viewers:
            self._viewers.remove(viewer)
        return not self._viewers and self._end is None

    def start(self) -> bool:
        """The caller said start; False when the work's turn has not come. A second one changes nothing."""
        if self._limit_ms is None:
            return False
        self._started = True
        if self._start is not None and not self._start.done():
            self._start.set_result(None)
        return True

    def end(self, end: Ended[ReplyT]) -> None:
        """The work is over: every stream is told."""
        if self._end is not None:
            return
        self._end = end
        for viewer in self._viewers:
            viewer.put(end)


def _nothing() -> None:
    return None


def _too_late(start: asyncio.Future[None]) -> None:
    if not start.done():
        start.set_exception(unavailable("The caller did not say start in time."))


def _not_answered(acked: asyncio.Future[bool]) -> None:
    if not acked.done():
        acked.set_exception(TimeoutError())
