"""One harness that is connected: its WebSocket, its channel, and what core remembers of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from protocol.closing import cut_reason
from services.common.text_lane import TextLane
from services.dev_core.clock import new_id
from services.dev_core.harness.channel import Channel, Handler

if TYPE_CHECKING:
    from services.dev_core.harness.run import Run

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Of a harness; a longer one closes the connection with 1009."""
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Written for a harness that does not read; more drops the connection."""
MAX_IN_FLIGHT: Final = 8192
"""Requests being served on one connection; beyond it nothing more is read until half of them are answered."""
_CLOSE_S: Final = 1.0
_WIND_DOWN_S: Final = 5.0


class HarnessSocket(TextLane, ServerConnection):
    """A server's WebSocket that hands text messages over at once and writes those of a turn together."""

    max_text_bytes = MAX_MESSAGE_BYTES


class Connection:
    """A harness. `owner` names it in leases; `runs` are those it holds, `workspace` what it declared."""

    def __init__(self, socket: HarnessSocket, handle: Handler, *, ping_ms: int, silence_ms: int) -> None:
        self.owner: Final = new_id("conn")
        self.said_hello = False
        self.workspace = False
        self.runs: dict[str, Run] = {}
        self.claims: Counter[str] = Counter()
        """Workspace requests in flight here, by the session they are about."""
        self.open_claims = 0
        """Workspace requests in flight that may report events of any session."""
        self.waiting = False
        """A lease request of this connection is outstanding."""
        self.channel: Final = Channel(self._post, self.close, handle)
        self._socket = socket
        self._ping_s = ping_ms / 1000
        self._silence_s = silence_ms / 1000
        self._closing: tuple[int, str] | None = None
        self._close_due = asyncio.Event()
        self._paused = False
        self.end_reason = ""

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.channel.closed

    def _post(self, text: str) -> None:
        if self._closing is not None:
            return
        if self._socket.post(text) > MAX_UNSENT_BYTES:
            self._terminate("the harness does not read")
        if self._paused and self.channel.in_flight <= MAX_IN_FLIGHT // 2:
            self._paused = False
            self._socket.transport.resume_reading()

    def close(self, code: int, reason: str) -> None:
        """Closes after what was sent; nothing more is received or sent."""
        if self._closing is None:
            self._closing = (code, cut_reason(reason))
            self.end_reason = reason
            self._close_due.set()

    def _terminate(self, reason: str) -> None:
        self.end_reason = reason
        self._socket.transport.abort()

    def _receive(self, message: str | bytes) -> None:
        if self._closing is not None:
            return
        self.channel.receive(message)
        if self.channel.in_flight > MAX_IN_FLIGHT and not self._paused:
            self._paused = True
            self._socket.transport.pause_reading()

    async def serve(self) -> None:
        """Runs the connection until it is over; afterwards nothing of it is left running."""
        loop = asyncio.get_running_loop()
        self._socket.heard_at = loop.time()
        self._socket.on_text = self._receive
        closer = loop.create_task(self._close_when_due())
        watch = loop.create_task(self._watch())
        try:
            while True:
                # Only what the socket did not hand over.
                message = await self._socket.recv()
                self._receive(message)
                self._socket.queued -= 1
        except ConnectionClosed as error:
            if not self.end_reason and error.rcvd is not None:
                self.end_reason = error.rcvd.reason or f"closed with {error.rcvd.code}"
        finally:
            self.channel.mark_closed()
            for task in (closer, watch):
                task.cancel()
            await asyncio.gather(closer, watch, return_exceptions=True)

    async def _close_when_due(self) -> None:
        await self._close_due.wait()
        assert self._closing is not None
        with contextlib.suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close(*self._closing)
        self._socket.transport.abort()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._ping_s, self._silence_s))
            if loop.time() - self._socket.heard_at > self._silence_s:
                self._terminate(f"nothing heard for {round(self._silence_s)} s")
                return
            with contextlib.suppress(ConnectionClosed):
                await self._socket.ping()

    async def wind_down(self) -> None:
        """Lets requests that are being served commit what they have begun."""
        await self.channel.finish(_WIND_DOWN_S)
