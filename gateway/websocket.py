"""The WebSocket to core: dialling, and one open socket behind four methods (harness-api 1.1).

All of the `websockets` library and all socket errors meet here; the rest of the gateway knows `Socket`,
`SocketClosed` and `DialFailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from websockets.asyncio import client
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import State

from gateway.harness_api.channel import MAX_FRAME_BYTES
from gateway.harness_api.closing import ABNORMAL
from gateway.timing import Timing
from services.common.text_lane import TextLane

API_HEADER: Final = "nylorun-harness-api"
API_VERSION: Final = "1"


class DialFailed(Exception):
    """There is no connection. The text says why and holds nothing secret."""


class SocketClosed(Exception):
    """The socket is closed, with the peer's code (1006 without one) and reason.

    `local_reason` is what this end's own protocol layer closed for, for instance a message over the limit.
    """

    def __init__(self, code: int, reason: str, local_reason: str = "") -> None:
        super().__init__(f"{code} {reason or local_reason}")
        self.code = code
        self.reason = reason
        self.local_reason = local_reason


class Socket(Protocol):
    """An open WebSocket."""

    @property
    def last_heard(self) -> float:
        """The loop's time at which anything last came: a message, a ping or a pong."""
        ...

    def hand_over(self, receiver: Callable[[str], None]) -> None:
        """From now on text messages may go to the receiver at once; which don't still come by `receive`.

        The receiver must not raise.
        """
        ...

    async def receive(self) -> str | bytes:
        """The next message, to be dealt with before the next call. Raises SocketClosed."""
        ...

    def try_send(self, texts: Sequence[str]) -> bool:
        """Sends text messages if the peer reads; False, and nothing is sent, when `send` would wait or raise."""
        ...

    async def send(self, texts: Sequence[str]) -> None:
        """Sends text messages; waits while the peer does not read. Raises SocketClosed."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Sends a close frame and waits for the peer's, for a bounded time. Never fails."""
        ...

    def cut(self) -> None:
        """Ends the TCP connection without a close frame."""
        ...


class Dialer(Protocol):
    """Opens sockets."""

    async def __call__(self, url: str, token: str) -> Socket:
        """Dials once. Raises DialFailed."""
        ...


class WebSocketDialer:
    """Dials with the `websockets` library."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    async def __call__(self, url: str, token: str) -> Socket:
        """Opens a connection; redirects are not followed, no proxy of the environment is used."""
        try:
            connection = await _Connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}", API_HEADER: API_VERSION},
                create_connection=_HarnessConnection,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                ping_interval=None,
                proxy=None,
                user_agent_header=None,
                open_timeout=self._timing.open_timeout,
                close_timeout=self._timing.close_handshake,
            )
        except InvalidStatus as refusal:
            status = refusal.response.status_code
            hint = " (NYLORUN_HARNESS_TOKEN is not the core's token)" if status == 401 else ""
            raise DialFailed(f"refused: {status}{hint}") from None
        except (OSError, UnicodeError, EOFError, InvalidHandshake, InvalidURI) as error:
            raise DialFailed(_reason(error)) from None
        return _WebSocket(cast(_HarnessConnection, connection))


class _Connect(client.connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _HarnessConnection(TextLane, client.ClientConnection):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.max_text_bytes = MAX_FRAME_BYTES

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Sends several messages with one look at flow control. Raises ConnectionClosed."""
        async with self.send_context():
            for text in texts:
                self.post(text)


class _WebSocket:
    def __init__(self, connection: _HarnessConnection) -> None:
        self._connection = connection
        self._given = False

    @property
    def last_heard(self) -> float:
        return self._connection.heard_at

    def hand_over(self, receiver: Callable[[str], None]) -> None:
        self._connection.on_text = receiver

    async def receive(self) -> str | bytes:
        if self._given:
            # Only now is it dealt with, and only then may another overtake the library's queue.
            self._given = False
            self._connection.queued -= 1
        try:
            message = await self._connection.recv()
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        self._given = True
        return message

    def try_send(self, texts: Sequence[str]) -> bool:
        connection = self._connection
        if connection.protocol.state is not State.OPEN or connection.paused:
            return False
        for text in texts:
            connection.post(text)
        return True

    async def send(self, texts: Sequence[str]) -> None:
        try:
            await self._connection.send_texts(texts)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)

    def cut(self) -> None:
        self._connection.transport.abort()


def _closed(closed: ConnectionClosed) -> SocketClosed:
    local_reason = closed.sent.reason if closed.sent is not None else ""
    if closed.rcvd is None:
        return SocketClosed(ABNORMAL, "", local_reason)
    return SocketClosed(int(closed.rcvd.code), closed.rcvd.reason, local_reason)


def _reason(error: Exception) -> str:
    """One line for an error of dialling. The library's texts hold addresses and rules, never headers."""
    return " ".join(str(error).split()) or type(error).__name__
