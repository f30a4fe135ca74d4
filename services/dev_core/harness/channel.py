"""Core's end of a Harness API channel: frames in, frames out, no socket (harness-api 2).

The owner feeds texts to `receive` and sends what `send` is called with. A request's handler starts before
the next frame is looked at: what it does before its first await is done in the order the frames came in.
Effects, which are most of the traffic, are answered from the commit's callback without a task between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from protocol import frames
from protocol.closing import INVALID_DATA, INVALID_FRAME, NORMAL, NOT_JSON
from protocol.errors import HarnessApiError
from protocol.frames import FrameInvalid
from protocol.jsjson import JsonError
from protocol.methods import CORE_METHODS, MethodInvalid, check_params, check_result
from services.common.logs import error_text, get_logger
from services.dev_core.store.transaction import StoreFailed

CLOSED: Final = "The Harness API connection closed"

Handler: TypeAlias = Callable[["Serving"], Coroutine[Any, Any, Any] | None]
"""Starts to serve a request. What the coroutine returns is the answer and what it raises the refusal; a
handler that returns None calls `answer` or `refuse` itself, at once or later. It may raise, too."""


class Serving:
    """One request of the peer that is being served."""

    __slots__ = ("_channel", "_on_give_up", "given_up", "id", "method", "params", "plain", "raw")

    def __init__(self, channel: Channel, request: frames.Request, params: Any) -> None:
        self._channel = channel
        self.id: Final = request.id
        self.method: Final = request.m
        self.params: Final = params
        """The params as their struct."""
        self.raw: Final = request.p
        """The params as they came."""
        self.plain: Final = request.plain
        self.given_up = False
        self._on_give_up: Callable[[], None] | None = None

    def answer(self, result: Any) -> None:
        """Answers with a JSON value, RawJson inside allowed."""
        self._channel.answer(self, result)

    def refuse(self, error: BaseException) -> None:
        """Answers with a refusal: a HarnessApiError's own, `internal` for everything else."""
        self._channel.refuse(self, error)

    def go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        """Serves the request with a coroutine after all, as if the handler had returned it."""
        self._channel.go_on(self, work)

    def on_give_up(self, listener: Callable[[], None]) -> None:
        """Calls the listener when the requester gives up."""
        self._on_give_up = listener

    def give_up(self) -> None:
        """The requester gave up, or the channel closed."""
        if not self.given_up:
            self.given_up = True
            if self._on_give_up is not None:
                self._on_give_up()


class Channel:
    """One connection's channel. `send` takes a text to send, `close` a code and a reason."""

    def __init__(
        self, send: Callable[[str], None], close: Callable[[int, str], None], handle: Handler
    ) -> None:
        self._send = send
        self._close = close
        self._handle = handle
        self._serving: dict[int, Serving] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._next_id = 0
        self._loop = asyncio.get_running_loop()
        self.closed = False

    @property
    def in_flight(self) -> int:
        """Requests of the peer that are being served."""
        return len(self._serving)

    # What comes in

    def receive(self, text: str | bytes) -> None:
        """Takes one WebSocket message: text as `str`, binary as `bytes`."""
        if isinstance(text, bytes):
            self._close(INVALID_DATA, NOT_JSON)
            return
        try:
            frame = frames.decode_frame(text)
        except FrameInvalid as error:
            if error.id is None:
                self._close(NORMAL, INVALID_FRAME + error.reason)
            else:
                self._send(frames.encode_refusal(error.id, "invalid", INVALID_FRAME + error.reason))
            return
        except JsonError:
            self._close(INVALID_DATA, NOT_JSON)
            return
        match frame:
            case frames.Request():
                self._serve(frame)
            case frames.Answer() | frames.Refusal():
                self._settle(frame)
            case frames.AbortFrame():
                serving = self._serving.get(frame.id)
                if serving is not None:
                    serving.give_up()
            case frames.TooDeep(t="req", id=int(frame_id)):
                self._send(frames.encode_refusal(frame_id, "invalid", "the frame nests too deep"))
            case frames.TooDeep(t="res", id=int(frame_id)):
                _, future = self._pending.pop(frame_id, ("", None))
                if future is not None and not future.done():
                    future.set_exception(HarnessApiError("invalid", "the answer nests too deep"))
            case _:
                pass  # A ping was heard; a harness sends core no message that means anything.

    def _serve(self, request: frames.Request) -> None:
        try:
            if request.m in CORE_METHODS:
                raise MethodInvalid("$", f"unknown request {request.m}")
            params = check_params(request.m, request.p)
        except MethodInvalid as error:
            self._send(frames.encode_refusal(request.id, "invalid", str(error)))
            return
        serving = Serving(self, request, params)
        # A peer that uses an id twice gets two answers; only the later one can be given up.
        self._serving[request.id] = serving
        try:
            work = self._handle(serving)
        except Exception as error:  # noqa: BLE001  (the edge: `refuse` tells what leaves)
            self.refuse(serving, error)
            return
        if work is not None:
            self.go_on(serving, work)

    def go_on(self, serving: Serving, work: Coroutine[Any, Any, Any]) -> None:
        """Runs the coroutine that serves a request."""
        task = self._loop.create_task(self._run(serving, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, serving: Serving, work: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await work
        except Exception as error:  # noqa: BLE001  (the edge: `refuse` tells what leaves)
            self.refuse(serving, error)
        else:
            self.answer(serving, result)

    def answer(self, serving: Serving, result: Any) -> None:
        """Ends a request with a result."""
        if self._serving.get(serving.id) is serving:
            del self._serving[serving.id]
        if not self.closed:
            # Results are ASCII names, integers and stored texts, so orjson may write them.
            self._send(frames.encode_answer(serving.id, result, plain=True))

    def refuse(self, serving: Serving, error: BaseException) -> None:
        """Ends a request with a refusal; no text of an unforeseen error leaves the process."""
        if self._serving.get(serving.id) is serving:
            del self._serving[serving.id]
        if self.closed:
            return
        if not isinstance(error, HarnessApiError):
            if not isinstance(error, StoreFailed):
                get_logger().error("request_failed", method=serving.method, error=error_text(error))
            text = str(error) if isinstance(error, StoreFailed) else "The core failed to serve the request"
            error = HarnessApiError("internal", text)
        self._send(frames.encode_refusal(serving.id, error.code, error.message))

    def _settle(self, frame: frames.Answer | frames.Refusal) -> None:
        method, future = self._pending.pop(frame.id, ("", None))
        if future is None or future.done():
            return
        if isinstance(frame, frames.Refusal):
            future.set_exception(HarnessApiError(frame.code, frame.message))
            return
        try:
            future.set_result(check_result(method, frame.r))
        except MethodInvalid as error:
            future.set_exception(HarnessApiError("invalid", str(error)))

    # What goes out

    def message(self, method: str, params: Any) -> None:
        """Sends a message."""
        if not self.closed:
            self._send(frames.encode_message(method, params))

    async def request(self, method: str, params: Any) -> Any:
        """Asks the harness; the result's struct. Raises HarnessApiError.

        Cancelling it sends an abort. Params that the wire refuses raise MethodInvalid and send nothing.
        """
        check_params(method, params)
        if self.closed:
            raise HarnessApiError("unavailable", CLOSED)
        self._next_id += 1
        request_id = self._next_id
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[request_id] = (method, future)
        self._send(frames.encode_request(request_id, method, params))
        try:
            return await future
        finally:
            if self._pending.pop(request_id, None) is not None and not self.closed:
                self._send(frames.encode_abort(request_id))

    # The end

    def mark_closed(self) -> None:
        """The connection is gone: calls fail, requests being served are given up; nothing is sent."""
        if self.closed:
            return
        self.closed = True
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if not future.done():
                future.set_exception(HarnessApiError("unavailable", CLOSED))
        for serving in list(self._serving.values()):
            serving.give_up()

    async def finish(self, timeout_s: float) -> None:
        """Waits for the requests being served, then cancels what is left."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
