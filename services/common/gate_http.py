"""Posts to a gates service: a fresh connection each, nothing followed, nothing retried, and a plain answer to
the question whether the service had the whole request (model-executor 5, mcp-pool 9.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from services.common import metrics, telemetry
from services.common.logs import trace_context
from services.common.metadata import TRACEPARENT

SILENCE_MS: Final = 630_000
"""No byte for so long is a failure: above the gate's own limits for a call, below its one for requests."""
QUICK_S: Final = 2.0
"""What a request that nobody waits for (a cancel, a close) may take."""
_KEEP_ALIVE_S: Final = 30
"""An idle connection is probed after this time, so that a dead peer or a forgetful router is noticed."""
_PIECE: Final = 64 * 1024
_COMPONENT: Final = "-_.!~*'()"
_OWN_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class GateUnreachable(Exception):
    """The service never had the whole request: it did nothing."""


class GateLost(Exception):
    """The service had the whole request, and its answer is missing or incomplete."""


class GateSilent(Exception):
    """No byte moved for the whole silence limit. `handed_over`: the service had the whole request."""

    def __init__(self, handed_over: bool) -> None:
        super().__init__(handed_over)
        self.handed_over = handed_over


class GateAnswerTooLarge(Exception):
    """The answer has more bytes than the caller takes."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A complete answer."""

    status: int
    body: bytes


class GateHttp:
    """Requests to one gates service. `url` is any URL of it: only its origin counts.

    `max_answer_bytes` None: answers of any size are read.
    """

    def __init__(
        self, url: str, *, silence_s: float = SILENCE_MS / 1000, max_answer_bytes: int | None = None
    ) -> None:
        self.origin = str(URL(url).origin())
        self.silence_s = silence_s
        self._max_answer_bytes = max_answer_bytes
        self._made: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            self._made = aiohttp.ClientSession(
                # A kept connection that went stale would be a recorded failure.
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.silence_s, sock_read=self.silence_s
                ),
                skip_auto_headers=_OWN_HEADERS,
            )
        return self._made

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answered:
        """One request and its complete answer. When cancelled, the connection is closed at once.

        Raises GateUnreachable, GateLost, GateSilent and GateAnswerTooLarge.
        """
        if not (metrics.current.enabled or telemetry.current.enabled):
            return await self._post(path, body, {**headers, **_trace()})
        attributes = {"http.request.method": "POST", "server.address": URL(self.origin).host or ""}
        began = asyncio.get_running_loop().time()
        with telemetry.current.span("POST", attributes, trace_context.get()) as trace:
            try:
                answered = await self._post(
                    path, body, {**headers, **({} if trace is None else {TRACEPARENT: trace})}
                )
                attributes["http.response.status_code"] = str(answered.status)
                return answered
            except BaseException as error:
                attributes["error.type"] = type(error).__name__
                raise
            finally:
                took = asyncio.get_running_loop().time() - began
                metrics.current.record("http.client.request.duration", took, attributes)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answered:
        loop = asyncio.get_running_loop()
        bound: asyncio.Timeout | None = None

        def progress(all_of_it: bool) -> None:
            # From here on the socket's own read timeout watches.
            with contextlib.suppress(RuntimeError):
                if bound is not None:
                    bound.reschedule(None if all_of_it else loop.time() + self.silence_s)

        sent = _SentBody(body, progress)
        try:
            async with asyncio.timeout(self.silence_s) as bound:
                async with self._session().post(
                    URL(self.origin + path, encoded=True),
                    data=sent,
                    headers=headers,
                    allow_redirects=False,
                ) as response:
                    return Answered(response.status, await self._read(response))
        except TimeoutError:
            raise GateSilent(sent.handed_over) from None
        except aiohttp.ClientConnectorError:
            raise GateUnreachable from None
        except aiohttp.ClientPayloadError:
            raise GateLost from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise (GateLost if sent.handed_over else GateUnreachable) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if self._max_answer_bytes is None:
            return await response.read()
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > self._max_answer_bytes:
                raise GateAnswerTooLarge
            pieces.append(piece)
        return b"".join(pieces)

    async def tell(self, path: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """A request whose answer changes nothing. Never fails; at most 2 s."""
        length = {"Content-Length": str(len(body))}
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with asyncio.timeout(QUICK_S):
                async with self._session().post(
                    URL(self.origin + path, encoded=True),
                    data=body or None,
                    headers={**headers, **length, **_trace()},
                    allow_redirects=False,
                ) as response:
                    await response.read()

    async def close(self) -> None:
        """Closes what is open."""
        if self._made is not None:
            await self._made.close()


def _trace() -> dict[str, str]:
    """The trace of the call that is served, where there is one (operations 12.11)."""
    trace = trace_context.get()
    return {} if trace is None else {TRACEPARENT: trace}


def component(text: str) -> str:
    """The text as one segment of a path, encoded as encodeURIComponent does it."""
    return urllib.parse.quote(text, safe=_COMPONENT)


class _SentBody(payload.Payload):
    """JSON bytes, written in pieces of 64 KiB.

    `handed_over` is true once the operating system has all of them. `progress` is called after each piece.
    """

    _autoclose = True

    def __init__(self, content: bytes, progress: Callable[[bool], None]) -> None:
        super().__init__(content, content_type="application/json")
        self._content = content
        self._size = len(content)
        self._progress = progress
        self.handed_over = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text; asked for by aiohttp's own error messages only."""
        return self._content.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Writes everything and waits until the socket's buffer is empty."""
        transport = getattr(writer, "transport", None)
        if transport is not None:
            # A drain then waits for an empty buffer, not for one that is short enough.
            transport.set_write_buffer_limits(high=0)
            _keep_alive(transport.get_extra_info("socket"))
        view = memoryview(self._content)
        for start in range(0, len(view), _PIECE):
            await writer.write(bytes(view[start : start + _PIECE]))
            await writer.drain()
            self._progress(False)
        self.handed_over = True
        self._progress(True)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """The same: the length is always the whole one."""
        await self.write(writer)


def _keep_alive(connection: socket.socket | None) -> None:
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)
