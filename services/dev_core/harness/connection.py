"""One harness that is connected: its WebSocket, its channel, and what core remembers of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from services.dev_core.clock import new_id
from services.dev_core.harness.channel import Channel, Handler

if TYPE_CHECKING:
    from services.dev_core.harness.run import Run

MAX_REASON_BYTES: Final = 120
MAX_UNSENT_CHARS: Final = 256 * 1024 * 1024
"""Text queued for a harness that does not read; more drops the connection."""
_CLOSE_S: Final = 1.0
_WIND_DOWN_S: Final = 5.0


class HarnessSocket(ServerConnection):
    """A server's WebSocket that notes when anything was heard, pings and pongs included."""

    heard_at: float = 0.0

    def process_event(self, event: object) -> None:
        """Called by the library for each event of the peer."""
        self.heard_at = self.loop.time()
        super().process_event(event)  # type: ignore[arg-type]

    def send_data(self) -> None:
        """Called by the library when there is something to write: one system call for all of it."""
        chunks = self.protocol.data_to_send()
        data = b"".join(chunks)
        if data:
            self.transport.write(data)
        if b"" in chunks and self.transport.can_write_eof():
            # The library's mark for the end of the stream; the transport may be closing already.
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    async def send_all(self, texts: list[str]) -> None:
        """Sends messages in a row. Raises ConnectionClosed."""
        async with self.send_context():
            for text in texts:
                self.protocol.send_text(text.encode())


def cut_reason(reason: str) -> str:
    """A close reason of at most 120 bytes; a code point that is cut becomes a replacement character."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "replace")


class Connection:
    """A harness. `owner` names it in leases; `runs` are those it holds, `workspace` what it declared."""

    def __init__(
        self,
        socket: HarnessSocket,
        handle: Handler,
        *,
        ping_ms: int,
        silence_ms: int,
    ) -> None:
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
        self.channel: Final = Channel(self._queue, self.close, handle)
        self._socket = socket
        self._ping_s = ping_ms / 1000
        self._silence_s = silence_ms / 1000
        self._unsent: list[str] = []
        self._unsent_chars = 0
        self._wake = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self.end_reason = ""

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.channel.closed

    # Sending

    def _queue(self, text: str) -> None:
        if self.channel.closed or self._closing is not None:
            return
        self._unsent.append(text)
        self._unsent_chars += len(text)
        if self._unsent_chars > MAX_UNSENT_CHARS:
            self._terminate("the harness does not read")
        self._wake.set()

    def close(self, code: int, reason: str) -> None:
        """Closes after what is queued was sent."""
        if self._closing is None:
            self._closing = (code, cut_reason(reason))
            self.end_reason = reason
            self._wake.set()

    def _terminate(self, reason: str) -> None:
        self.end_reason = reason
        self._socket.transport.abort()

    async def _write(self) -> None:
        while True:
            while self._unsent:
                texts, self._unsent, self._unsent_chars = self._unsent, [], 0
                await self._socket.send_all(texts)
            if self._closing is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._socket.close(*self._closing)
                self._socket.transport.abort()
                return
            self._wake.clear()
            await self._wake.wait()

    # Receiving

    async def serve(self) -> None:
        """Runs the connection until it is over; afterwards nothing of it is left running."""
        loop = asyncio.get_running_loop()
        self._socket.heard_at = loop.time()
        writer = loop.create_task(self._swallow(self._write()))
        watch = loop.create_task(self._swallow(self._watch()))
        try:
            while self._closing is None:
                self.channel.receive(await self._socket.recv())
            await writer
        except ConnectionClosed as error:
            if not self.end_reason and error.rcvd is not None:
                self.end_reason = error.rcvd.reason or f"closed with {error.rcvd.code}"
        finally:
            self.channel.mark_closed()
            for task in (writer, watch):
                task.cancel()
            await asyncio.gather(writer, watch, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._ping_s, self._silence_s))
            if loop.time() - self._socket.heard_at > self._silence_s:
                self._terminate(f"nothing heard for {round(self._silence_s)} s")
                return
            await self._socket.ping()

    async def _swallow(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(ConnectionClosed):
            await work

    async def wind_down(self) -> None:
        """Lets requests that are being served commit what they have begun."""
        await self.channel.finish(_WIND_DOWN_S)
