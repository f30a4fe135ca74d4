"""One stream of an effect call: what its peer is told, and what it says (design 3.3).

The stream's handler reads; most calls need nobody else. It tells its peer itself what is there before it
begins to read, and the end. What comes up while it reads (events, a turn after a wait) is told by a task that
lives as long as there is something to tell: a read that gRPC has begun can't be taken up again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2

from services.common.effect_run import SHUTDOWN, EffectRun, Ended, Said, TurnCame, Viewer, Waiting
from services.common.errors import invalid
from services.common.metadata import ACCEPTED, LIMIT_MS

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Message(Protocol):
    """A protobuf message of the call, as far as this module needs it."""

    def ByteSize(self) -> int:
        """Its size on the wire."""
        ...


ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class StreamTimings:
    """Limits of a stream, in seconds."""

    request_s: float = 30.0
    """From the opened stream to its request."""
    first_word_s: float = 1.0
    """Work that has neither been accepted nor queued by then is called queued."""
    heartbeat_s: float = 10.0
    """Between two `queued` messages; 30 s without a word count as a lost peer."""
    start_s: float = 30.0
    """From accepted to `start`; the work holds its turn meanwhile."""


@dataclass(frozen=True, slots=True)
class Replies(Generic[ReplyT]):
    """How the service's replies are made."""

    queued: Callable[[common_pb2.Queued], ReplyT]
    accepted: Callable[[common_pb2.Accepted], ReplyT]
    aborted: Callable[[common_pb2.Aborted], ReplyT]
    raised: Callable[[common_pb2.Raised], ReplyT]


class Conversation(Generic[ReplyT]):
    """See the module. `abort(kind)` stops the work; it is called for the peer's own aborts."""

    __slots__ = (
        "_abort",
        "_accepted",
        "_context",
        "_error",
        "_handler",
        "_opened",
        "_reading",
        "_replies",
        "_run",
        "_silent",
        "_speaker",
        "_speaking",
        "_spoken",
        "_timer",
        "_timings",
        "_viewer",
        "_woken",
    )

    def __init__(
        self,
        context: Any,
        run: EffectRun[ReplyT],
        replies: Replies[ReplyT],
        timings: StreamTimings,
        abort: Callable[[int], None],
    ) -> None:
        self._context = context
        self._run = run
        self._viewer: Viewer[ReplyT] = Viewer()
        self._replies = replies
        self._timings = timings
        self._abort = abort
        self._handler: asyncio.Task[Any] | None = None
        self._speaker: asyncio.Task[None] | None = None
        self._silent: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._opened = False  # the initial metadata is out
        self._accepted = False  # the peer knows that the work's turn has come
        self._spoken = False  # the peer said something after its request, or that it will say no more
        self._speaking = True
        self._reading = False
        self._woken = False

    async def hold(self) -> None:
        """Talks until the end was told. Raises Refused, and what gRPC raises for a peer that is gone."""
        viewer, self._handler = self._viewer, asyncio.current_task()
        viewer.on_news = self._tell_news
        self._run.attach(viewer)
        try:
            # Work whose turn comes at once says so in its first step.
            await asyncio.sleep(0)
            await self._tell_what_is_there()
            self._speaking = False
            if not self._accepted:
                self._beat_in(self._timings.first_word_s)
            if viewer.news:
                self._tell_news()
            await self._listen()
            if self._error is not None:
                raise self._error
            end = viewer.news.popleft()
            assert isinstance(end, Ended)
            if end.refused is not None:
                raise end.refused
            if end.reply is not None:
                await self._context.write(end.reply)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._speaker is not None:
                self._speaker.cancel()

    def leave(self) -> bool:
        """The stream is over. True when it was the last one of work that goes on."""
        return self._run.detach(self._viewer)

    # Telling

    async def _tell_what_is_there(self) -> None:
        """Everything but the end."""
        news = self._viewer.news
        while news and type(news[0]) is not Ended:
            item = news.popleft()
            if type(item) is TurnCame:
                await self._say_accepted(item.limit_ms)
            elif type(item) is Waiting:
                await self._say_queued(item.position)
            elif type(item) is Said:
                out = False
                try:
                    await self._context.write(item.reply)
                    out = True
                finally:
                    # Also when the peer goes meanwhile: the work waits for this.
                    if item.written is not None and not item.written.done():
                        item.written.set_result(out)

    async def _say_accepted(self, limit_ms: int) -> None:
        self._accepted = True
        if self._opened:
            accepted = common_pb2.Accepted(limit_ms=limit_ms)
            await self._context.write(self._replies.accepted(accepted))
        else:
            self._opened = True
            await self._context.send_initial_metadata(accepted_metadata(limit_ms))

    async def _say_queued(self, position: int) -> None:
        if self._run.accepted:
            return
        if not self._opened:
            self._opened = True
            await self._context.send_initial_metadata(())
        await self._context.write(self._replies.queued(common_pb2.Queued(position=position)))
        self._beat_in(self._timings.heartbeat_s)

    def _beat_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        if not self._run.accepted:
            self._viewer.put(Waiting(self._run.position))

    def _tell_news(self) -> None:
        """Something is to be told: whoever speaks goes on with it, else somebody begins."""
        if self._speaking:
            return
        if type(self._viewer.news[0]) is Ended:
            self._came_to_its_end()
            return
        self._speaking = True
        self._speaker = asyncio.get_running_loop().create_task(self._tell_what_is_there())
        self._speaker.add_done_callback(self._told)

    def _told(self, speaker: asyncio.Task[None]) -> None:
        self._speaking = False
        if speaker.cancelled():
            return
        self._error = speaker.exception()
        if self._error is not None:
            self._wake()
        elif self._viewer.news:
            self._tell_news()

    def _came_to_its_end(self) -> None:
        """The end is told by the handler, but not to a peer that is about to write `start`.

        A call that ends at that moment fails at the peer's end, answer and all.
        """
        end = self._viewer.news[0]
        assert isinstance(end, Ended)
        if self._accepted and not self._spoken and end.reply is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._timings.start_s, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        """Lets the handler go on to the end."""
        if self._woken:
            return
        self._woken = True
        if self._reading:
            assert self._handler is not None
            self._handler.cancel()
        elif self._silent is not None and not self._silent.done():
            self._silent.set_result(None)

    # Listening

    async def _listen(self) -> None:
        """Takes what the peer says until the handler is woken."""
        while not self._woken:
            message = await self._read()
            if self._woken:
                return
            self._spoken = True
            more = self._hear(message)
            if self._viewer.news:
                self._tell_news()  # an end that waited for this word
            if not more:
                break
        if not self._woken:
            self._silent = asyncio.get_running_loop().create_future()
            await self._silent

    async def _read(self) -> Any:
        """The next message; None when the handler was woken instead."""
        self._reading = True
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if self._woken and self._handler is not None and self._handler.uncancel() == 0:
                return None
            raise
        finally:
            self._reading = False

    def _hear(self, message: Any) -> bool:
        """Takes a message; False when the peer will say nothing more, or nothing more of it counts."""
        run = self._run
        if message is EOF:
            # Without a start there is nothing to wait for.
            if not run.started:
                self._abort(SHUTDOWN)
            self._viewer.deaf()
            return False
        match message.WhichOneof("message"):
            case "start":
                if run.start():
                    return True
                self._refuse("`start` came before the work was accepted.")
            case "abort":
                self._abort(message.abort.kind)
                return True
            case "ack":
                self._viewer.acked(message.ack.seq)
                return True
            case _:
                self._refuse("A stream carries one request.")
        return False

    def _refuse(self, text: str) -> None:
        self._viewer.put(Ended(refused=invalid(text)))


def accepted_metadata(limit_ms: int) -> tuple[tuple[str, str], ...]:
    """The initial metadata of work whose turn has come."""
    return ((ACCEPTED, "1"), (LIMIT_MS, str(limit_ms)))
