"""The HTTP layer under the SDK's transports: one server, its headers, and what really happened to a request.

Requests go to the origin of the server's URL and nowhere else, redirects are not followed, no proxy of the
environment is used (mcp-pool 7.2). A request that fails must not end the transport with all its other
requests, as an exception would: its exchange is told, and the transport gets an answer that it can digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import httpcore2
import httpx2

from protocol.jsjson import JsonError, loads
from services.tool_gate.failures import (
    AnswerInvalid,
    HttpStatus,
    Lost,
    RpcError,
    SessionGone,
    Unreachable,
    UpstreamFailure,
)
from services.tool_gate.upstream.exchange import Exchange, current

ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A longer answer fails its request: it would not fit into a message of ours either."""
KEEP_OPEN_S: Final = 2.0
"""A connection that was idle for so long is not used again: most servers close it a little later, and a
request that meets the closing would count as lost."""
_ERROR_BYTES: Final = 64 * 1024
_CONNECTION_S: Final = 30.0
"""For connecting, the TLS handshake and each piece of a request that is written."""
_SESSION: Final = "mcp-session-id"


class ServerHttp(httpx2.AsyncBaseTransport):
    """Requests to one server.

    `credentials` replace headers of the same name. With `resident` the transport posts into a stream that it
    got its answers from anyway (the SSE transport): every POST that was sent counts as accepted there.
    `on_gone` is called when the server can't be reached to listen to it.
    """

    def __init__(
        self,
        url: str,
        network: httpcore2.AsyncNetworkBackend,
        credentials: Mapping[str, str],
        tls: ssl.SSLContext,
        *,
        resident: bool = False,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._origin = _origin(httpx2.URL(url))
        self._credentials = dict(credentials)
        self._resident = resident
        self._on_gone = on_gone
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=KEEP_OPEN_S,
            http1=True,
            http2=False,
            network_backend=network,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One request. Only a GET raises (httpx2.ConnectError): the transports expect that of it."""
        exchange = current.get() or Exchange()
        posts = request.method == "POST"
        if exchange.given_up or _origin(request.url) != self._origin:
            exchange.fail(
                Unreachable("The MCP server sent the Tool Gate to another server; it does not go there.")
            )
            return self._failed(request)
        for name, value in self._credentials.items():
            request.headers[name] = value
        try:
            response = await self._pool.handle_async_request(
                self._sending(request, exchange if posts else None)
            )
        except (
            Unreachable,
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.TimeoutException,
        ) as error:
            if posts or exchange.opens:
                exchange.fail(_failure_of(error, exchange.sent, str(request.url.host)))
            else:
                self._on_gone()
            return self._failed(request)
        return await self._answered(request, response, exchange)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._pool.aclose()

    def _sending(self, request: httpx2.Request, exchange: Exchange | None) -> httpcore2.Request:
        extensions: dict[str, Any] = {
            "timeout": {"connect": _CONNECTION_S, "write": _CONNECTION_S, "read": None, "pool": None}
        }
        if exchange is not None:

            async def trace(name: str, info: Any) -> None:
                del info
                if name.endswith("send_request_body.complete"):
                    exchange.sent = True

            extensions["trace"] = trace
        return httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=extensions,
        )

    async def _answered(
        self, request: httpx2.Request, response: httpcore2.Response, exchange: Exchange
    ) -> httpx2.Response:
        status, posts = response.status, request.method == "POST"
        headers = [(name, value) for name, value in response.headers if name.lower() != b"location"]
        if status >= 300 and (posts or exchange.opens):
            body = await _error_body(response)
            exchange.fail(_status_failure(status, body, _SESSION in request.headers))
            return self._failed(request)
        stream = _Body(response, exchange if posts else None)
        return httpx2.Response(status, headers=headers, stream=stream, request=request)

    def _failed(self, request: httpx2.Request) -> httpx2.Response:
        """What the transport is told about a request whose exchange knows better."""
        if request.method != "POST":
            raise httpx2.ConnectError("The request failed.", request=request)
        return httpx2.Response(202 if self._resident else 502, request=request)


class _Body(httpx2.AsyncByteStream):
    """An answer's bytes. A POST's answer that breaks off, or is too long, ends here and fails its exchange."""

    def __init__(self, response: httpcore2.Response, exchange: Exchange | None) -> None:
        self._response = response
        self._exchange = exchange
        content_type = dict(response.headers).get(b"content-type", b"")
        self._is_events = content_type.lower().startswith(b"text/event-stream")
        self._closing: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        size = 0
        try:
            if exchange is not None:
                exchange.streams(self._stop)
            async for piece in self._response.aiter_stream():
                size += len(piece)
                if size > ANSWER_BYTES and not self._is_events:
                    if exchange is not None:
                        exchange.fail(
                            AnswerInvalid(f"The MCP server's answer is longer than {ANSWER_BYTES} bytes.")
                        )
                    return
                yield piece
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
            # A stream of events may be taken up again where it broke off; that is the transport's to know.
            if exchange is not None and not self._is_events:
                exchange.fail(Lost("The MCP server's answer broke off."))
        finally:
            if exchange is not None:
                exchange.streams(None)

    async def aclose(self) -> None:
        """Gives the connection back, or closes it when not all was read."""
        await self._response.aclose()

    def _stop(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(httpcore2.NetworkError, httpcore2.ProtocolError):
            await self._response.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _error_body(response: httpcore2.Response) -> bytes:
    """The beginning of an error's body: as much of it as a JSON-RPC error may take."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in response.aiter_stream():
            pieces.append(piece)
            size += len(piece)
            if size > _ERROR_BYTES:
                break
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
        return b""
    finally:
        await response.aclose()
    return b"".join(pieces)


def _status_failure(status: int, body: bytes, in_session: bool) -> UpstreamFailure:
    """What an error status means; a JSON-RPC error in its body says more."""
    if status == 404 and in_session:
        return SessionGone()
    if status in (401, 403):
        return HttpStatus(status)
    try:
        message = loads(body)
    except (JsonError, UnicodeDecodeError):
        message = None
    error = message.get("error") if isinstance(message, dict) else None
    code, text = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
    if isinstance(code, int) and not isinstance(code, bool) and isinstance(text, str):
        return RpcError(code, text)
    return HttpStatus(status)


def _failure_of(error: Exception, sent: bool, host: str) -> UpstreamFailure:
    if isinstance(error, Unreachable):
        return error
    if sent:
        return Lost("The MCP server was lost before it answered.")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unreachable(f"The certificate of {host} is not trusted.")
        if isinstance(cause, ssl.SSLError):
            return Unreachable(f"No TLS connection to {host} can be made.")
        cause = cause.__cause__ or cause.__context__
    return Unreachable(f"{host} can't be reached.")
