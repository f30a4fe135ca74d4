"""One connection to a remote MCP server: one task owns the SDK's transport from its beginning to its end
(mcp-pool 4 and 10.2); requests may come from any task of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from protocol.mcp_client import ACCEPTED_VERSIONS, METHOD_NOT_FOUND, initialize_params
from services.common.logs import get_logger
from services.tool_gate.failures import AnswerInvalid, Lost, RpcError, TimedOut, Unreachable, UpstreamFailure
from services.tool_gate.scrub import scrub
from services.tool_gate.upstream.exchange import Exchange, current
from services.tool_gate.upstream.http import ANSWER_BYTES, ServerHttp

REQUEST_S: Final = 60.0
"""One request, from sending; progress does not extend it (mcp-pool 4)."""
COURTESY_S: Final = 5.0
"""What telling a server that a request was given up, or answering one of its own, may take."""
CLOSE_S: Final = 5.0
"""What ending a connection may take before its task is cancelled."""
MOST_REPLIES: Final = 100
"""A server that asks more without reading the answers gets none."""
_VERSION_HEADER: Final = "MCP-Protocol-Version"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a server is reached. `http` makes the HTTP layer of one connection from `resident` and `on_gone`.
    `secrets` are the credentials that go with requests: no failure's text shows them.
    """

    url: str
    is_sse: bool
    headers: Mapping[str, str]
    http: Callable[[bool, Callable[[], None]], ServerHttp]
    secrets: Sequence[str] = ()


class UpstreamConnection:
    """See the module. `request_s` bounds each request; `on_end` is called once when no more can be made."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_end: Callable[[UpstreamConnection], None],
        *,
        request_s: float = REQUEST_S,
    ) -> None:
        self._endpoint = endpoint
        self._on_end: Callable[[UpstreamConnection], None] | None = on_end
        self._request_s = request_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._version: str | None = None
        self._write: Any = None
        self._scope = anyio.CancelScope()
        self._opening = Exchange(opens=True)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._owner: asyncio.Task[None] | None = None
        self._side: set[asyncio.Task[None]] = set()
        self._over = False
        self._gone = False

    @property
    def usable(self) -> bool:
        """New requests can be sent."""
        return self._version is not None and not self._over and not self._gone

    @property
    def secrets(self) -> Sequence[str]:
        """The credentials that go with its requests."""
        return self._endpoint.secrets

    async def open(self) -> None:
        """Connects and initialises the session. Raises UpstreamFailure; close is called all the same."""
        self._owner = self._loop.create_task(self._own())
        try:
            async with asyncio.timeout(self._request_s):
                await asyncio.shield(self._opened)
        except TimeoutError:
            raise TimedOut(f"The MCP server did not answer within {self._request_s:g} s.") from None
        result = await self._request("initialize", initialize_params(), self._opening)
        self._version = _version_of(result)
        await self._courtesy(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))

    async def request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """One request. Raises UpstreamFailure; when cancelled, the server is told."""
        if not self.usable:
            raise Unreachable("The connection to the MCP server has ended.")
        return await self._request(method, params, Exchange())

    async def close(self) -> None:
        """Ends the connection, requests in flight included."""
        self._finish(Lost("The connection to the MCP server was closed."))
        self._scope.cancel()
        owner = self._owner
        if owner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.wait({owner})
            if not owner.done():
                owner.cancel()
                await asyncio.wait({owner}, timeout=CLOSE_S)

    # -- the owner of the transport

    async def _own(self) -> None:
        failure: UpstreamFailure = Lost("The connection to the MCP server has ended.")
        current.set(self._opening)
        try:
            with self._scope:
                async with _transport(self._endpoint, self._is_gone) as (read, write):
                    self._write = write
                    if not self._opened.done():
                        self._opened.set_result(None)
                    async for item in read:
                        if isinstance(item, SessionMessage):
                            self._take(item.message)
                        elif self._endpoint.is_sse:
                            break
        except Exception as error:  # noqa: BLE001  (a fault of the SDK's transport is this connection's)
            if isinstance(_first(error), httpx2.SSEError):
                failure = Lost("The MCP server sent an event that is longer than 1 MiB, or is none.")
            # Its text may hold what the server sent, or a URL.
            get_logger().info("mcp_upstream_ended", error=type(_first(error)).__name__)
        finally:
            for task in self._side:
                task.cancel()
            if self._side:
                await asyncio.wait(set(self._side), timeout=COURTESY_S)
            self._finish(self._opening.failure or failure)

    def _take(self, message: JSONRPCMessage) -> None:
        match message:
            case JSONRPCResponse(id=id_, result=result):
                future = self._waiter(id_)
                if future is not None:
                    future.set_result(result)
            case JSONRPCError(id=id_, error=error):
                future = self._waiter(id_)
                if future is not None:
                    future.set_exception(RpcError(error.code, error.message))
            case JSONRPCRequest(id=id_, method=method):
                if len(self._side) < MOST_REPLIES:
                    self._aside(self._courtesy(_reply(id_, method)))
            case _:
                return

    def _is_gone(self) -> None:
        """The server can't be reached any more: requests under way may end, new ones get a new connection."""
        self._gone = True
        self._say_ended()

    def _waiter(self, id_: object) -> asyncio.Future[dict[str, Any]] | None:
        # Our ids are numbers; some servers give them back as text.
        number = (
            int(id_) if isinstance(id_, str) and id_.isascii() and id_.isdigit() and len(id_) < 16 else id_
        )
        future = self._waiting.get(number) if isinstance(number, int) else None
        return future if future is not None and not future.done() else None

    def _finish(self, failure: UpstreamFailure) -> None:
        if self._over:
            return
        self._over = True
        for future in self._waiting.values():
            _fail(future, failure)
        if not self._opened.done():
            self._opened.set_exception(failure)
            self._opened.exception()  # whoever opens gets it; nobody else has to
        self._say_ended()

    def _say_ended(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    # -- requests

    async def _request(
        self, method: str, params: Mapping[str, Any] | None, exchange: Exchange
    ) -> dict[str, Any]:
        id_, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[id_] = future
        exchange.listen(lambda failure: _fail(future, failure))
        given = {} if params is None else {"params": dict(params)}
        message = JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, **given)
        try:
            async with asyncio.timeout(self._request_s):
                await self._send(message, exchange)
                return await future
        except TimeoutError:
            self._abandon(id_, exchange, "Request timed out")
            text = f"The MCP server did not answer {method} within {self._request_s:g} s."
            raise (TimedOut if exchange.sent else Unreachable)(text) from None
        except asyncio.CancelledError:
            self._abandon(id_, exchange, "The call was cancelled")
            raise
        except RpcError as error:
            known = exchange.failure or _meant(error)
            known.message, _ = scrub(known.message, self._endpoint.secrets)
            raise known from None
        except UpstreamFailure as failure:
            failure.message, _ = scrub(failure.message, self._endpoint.secrets)
            raise
        finally:
            del self._waiting[id_]
            if not future.cancel() and not future.cancelled():
                future.exception()

    async def _send(self, message: JSONRPCMessage, exchange: Exchange) -> None:
        token = current.set(exchange)
        headers = None if self._version is None else {_VERSION_HEADER: self._version}
        try:
            await self._write.send(SessionMessage(message, ClientMessageMetadata(headers=headers)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Unreachable("The connection to the MCP server has ended.") from None
        finally:
            current.reset(token)

    def _abandon(self, id_: int, exchange: Exchange, reason: str) -> None:
        exchange.give_up()
        if not self._over and exchange.sent:
            params = {"requestId": id_, "reason": reason}
            notice = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
            self._aside(self._courtesy(notice))

    async def _courtesy(self, message: JSONRPCMessage) -> None:
        with contextlib.suppress(TimeoutError, Unreachable):
            async with asyncio.timeout(COURTESY_S):
                await self._send(message, Exchange())

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)


@asynccontextmanager
async def _transport(endpoint: Endpoint, on_gone: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    http = endpoint.http(endpoint.is_sse, on_gone)

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        del headers, timeout, auth
        return httpx2.AsyncClient(
            transport=http, headers=dict(endpoint.headers), trust_env=False, follow_redirects=False
        )

    if endpoint.is_sse:
        async with sse_client(endpoint.url, httpx_client_factory=client) as streams:
            yield streams
    else:
        async with (
            client() as made,
            streamable_http_client(
                endpoint.url, http_client=made, terminate_on_close=False, max_sse_event_size=ANSWER_BYTES
            ) as streams,
        ):
            yield streams


def _version_of(result: Mapping[str, Any]) -> str:
    version, info = result.get("protocolVersion"), result.get("serverInfo")
    if not isinstance(version, str):
        raise AnswerInvalid("initialize: protocolVersion is not a string.")
    if not isinstance(info, dict) or not all(isinstance(info.get(name), str) for name in ("name", "version")):
        raise AnswerInvalid("initialize: serverInfo has no name or no version.")
    if not isinstance(result.get("capabilities"), dict):
        raise AnswerInvalid("initialize: capabilities is not an object.")
    if version not in ACCEPTED_VERSIONS:
        raise AnswerInvalid(f"The server speaks MCP version {version[:64]!r}, which is not supported.")
    return version


def _reply(id_: int | str, method: str) -> JSONRPCMessage:
    if method == "ping":
        return JSONRPCResponse(jsonrpc="2.0", id=id_, result={})
    error = ErrorData(code=METHOD_NOT_FOUND, message="Method not found")
    return JSONRPCError(jsonrpc="2.0", id=id_, error=error)


def _meant(error: RpcError) -> UpstreamFailure:
    """The server's own error, or what the SDK's transport means by one that it made up."""
    for code, beginning, failure in _MADE_UP:
        if error.code == code and error.text.startswith(beginning):
            return failure()
    return error


_MADE_UP: Final[tuple[tuple[int, str, Callable[[], UpstreamFailure]], ...]] = (
    (CONNECTION_CLOSED, "SSE stream ", lambda: Lost("The MCP server's answer broke off.")),
    (
        PARSE_ERROR,
        "Failed to parse ",
        lambda: AnswerInvalid("The MCP server's answer is no JSON-RPC message."),
    ),
    (INVALID_REQUEST, "Unexpected content type", lambda: AnswerInvalid("The MCP server answers no JSON.")),
    (INVALID_REQUEST, "server answered a request with 202", lambda: Lost("The MCP server gave no answer.")),
)


def _fail(future: asyncio.Future[dict[str, Any]], failure: UpstreamFailure) -> None:
    if not future.done():
        future.set_exception(failure)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
