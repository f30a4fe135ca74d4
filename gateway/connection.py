"""Drives one channel over one socket: reads, writes, watches for silence (harness-api 1.3, 1.4, 2.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from gateway.harness_api.channel import Channel, ToSend
from gateway.harness_api.closing import ABNORMAL, Close, describe_close
from gateway.harness_api.events import (
    CallFailed,
    CallSucceeded,
    ChannelClosed,
    Event,
    MessageArrived,
    RequestArrived,
    RequestGivenUp,
)
from gateway.timing import Timing
from gateway.websocket import Socket, SocketClosed
from protocol.errors import HarnessApiError
from protocol.jsjson import JsonValue


class Reply(msgspec.Struct, frozen=True):
    """What core answered: the method's checked struct, and whether its free parts are plain JSON."""

    result: Any
    plain: bool


CallEnd: TypeAlias = Reply | HarnessApiError
"""How a call ends."""


class Handler(Protocol):
    """Whoever serves a connection. Every method is called at once when its frame arrives, and in order."""

    def request_arrived(self, request: RequestArrived) -> None:
        """Core asks."""
        ...

    def request_given_up(self, request_id: int, error: HarnessApiError) -> None:
        """Core no longer wants the answer, or cannot get it."""
        ...

    def message_arrived(self, message: MessageArrived) -> None:
        """Core tells something."""
        ...

    def connection_closed(self) -> None:
        """The channel is closed. Called before any pending call fails."""
        ...


class Connection:
    """One open connection. `handler` must be set before `run`."""

    handler: Handler

    def __init__(self, socket: Socket, timing: Timing) -> None:
        self._socket = socket
        self._timing = timing
        self._channel = Channel()
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, Callable[[CallEnd], None]] = {}
        self._outbox: list[ToSend] = []
        self._writer_waits: asyncio.Future[None] | None = None
        self._dispatching = False
        self._local_reason = ""
        self._fault: Exception | None = None
        self._backstop: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Nothing is sent or received any more."""
        return self._channel.closed

    # Calls

    def call(
        self,
        method: str,
        params: JsonValue,
        done: Callable[[CallEnd], None],
        *,
        plain: bool = False,
    ) -> int:
        """Asks core; `done` is called at once when the answer arrives. Returns the call's number.

        Raises HarnessApiError, without ever calling `done`, when nothing could be sent.
        """
        call_id = self._channel.request(method, params, plain=plain)
        self._waiting[call_id] = done
        self._hand_over_frames()
        return call_id

    async def ask(self, method: str, params: JsonValue, *, plain: bool = False) -> Reply:
        """Asks core and waits for the answer. Raises HarnessApiError. Gives the call up when cancelled."""
        answered: asyncio.Future[Reply] = self._loop.create_future()

        def done(end: CallEnd) -> None:
            if answered.done():
                return
            if isinstance(end, Reply):
                answered.set_result(end)
            else:
                answered.set_exception(end)

        call_id = self.call(method, params, done, plain=plain)
        try:
            return await answered
        except asyncio.CancelledError:
            self.give_up(call_id)
            raise

    def give_up(self, call_id: int) -> None:
        """Aborts a pending call; its `done` is not called any more."""
        if self._channel.abort(call_id):
            del self._waiting[call_id]
            self._pump()

    # Answers

    def respond(self, request_id: int, result: JsonValue, *, plain: bool = False) -> None:
        """Answers a request of core's."""
        self._channel.respond(request_id, result, plain=plain)
        self._pump()

    def refuse(self, request_id: int, error: HarnessApiError) -> None:
        """Refuses a request of core's."""
        self._channel.refuse(request_id, error)
        self._pump()

    def close(self, code: int, reason: str) -> None:
        """Closes from this end, after everything that waits to be sent."""
        self._channel.close(code, reason)
        self._pump()

    # The socket

    async def run(self) -> str:
        """Serves the connection until it is closed; returns why, for the log."""
        closed = SocketClosed(ABNORMAL, "")
        self._socket.hand_over(self._received)
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._write()), tasks.create_task(self._watch())]
                try:
                    await self._read()
                except SocketClosed as end:
                    closed = end
                finally:
                    for helper in helpers:
                        helper.cancel()
        finally:
            self._channel.receive_close()
            self._pump()
            if self._backstop is not None:
                self._backstop.cancel()
            self._socket.cut()
        if self._fault is not None:
            raise self._fault
        return describe_close(closed.code, closed.reason, self._local_reason or closed.local_reason)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if isinstance(message, str):
                self._channel.receive_text(message)
            else:
                self._channel.receive_binary()
            self._pump()

    def _received(self, text: str) -> None:
        """A text message that the socket hands over from within the loop's own callback."""
        try:
            self._channel.receive_text(text)
            self._pump()
        except Exception as error:  # noqa: BLE001  (`run` raises it; the loop's callback could only log it)
            self._fault = error
            self._socket.cut()

    async def _write(self) -> None:
        while True:
            while self._outbox:
                # Everything that is due, as far as the close frame, which is always the last.
                due, self._outbox = self._outbox, []
                close = due.pop() if isinstance(due[-1], Close) else None
                try:
                    if due:
                        await self._socket.send(cast(list[str], due))
                except SocketClosed:
                    return
                if isinstance(close, Close):
                    await self._socket.close(close.code, close.reason)
                    return
            self._writer_waits = self._loop.create_future()
            await self._writer_waits

    async def _watch(self) -> None:
        silence_s = self._timing.silence
        while True:
            await asyncio.sleep(min(self._timing.ping, silence_s))
            if self._loop.time() - self._socket.last_heard > silence_s:
                self._local_reason = f"nothing heard for {round(silence_s)} s"
                self._socket.cut()
                return

    # Moving on

    def _pump(self) -> None:
        """Hands frames to the writer and events to the handler."""
        self._hand_over_frames()
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while events := self._channel.events():
                for event in events:
                    self._dispatch(event)
        finally:
            self._dispatching = False

    def _hand_over_frames(self) -> None:
        frames = self._channel.frames_to_send()
        if not frames:
            return
        writer = self._writer_waits
        idle = writer is not None and not writer.done()
        if isinstance(frames[-1], Close):
            self._local_reason = frames[-1].reason
            # A peer that does not read would hold the close frame back for ever.
            self._backstop = self._loop.call_later(self._timing.close_handshake * 2, self._socket.cut)
        elif idle and self._socket.try_send(cast(list[str], frames)):
            return
        self._outbox.extend(frames)
        if writer is not None and idle:
            writer.set_result(None)

    def _dispatch(self, event: Event) -> None:
        match event:
            case CallSucceeded():
                self._waiting.pop(event.call_id)(Reply(event.result, event.plain))
            case CallFailed():
                self._waiting.pop(event.call_id)(event.error)
            case RequestArrived():
                self.handler.request_arrived(event)
            case RequestGivenUp():
                self.handler.request_given_up(event.request_id, event.error)
            case MessageArrived():
                self.handler.message_arrived(event)
            case ChannelClosed():
                self._closed(event)

    def _closed(self, event: ChannelClosed) -> None:
        for request_id in event.given_up:
            self.handler.request_given_up(request_id, event.error)
        self.handler.connection_closed()
        # Also a call whose answer was lost to a fault of ours ends here.
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(event.error)
