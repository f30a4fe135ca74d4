"""The Harness API listener: upgrades that are checked in the order of harness-api 1.2, then connections."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request, Response

from protocol.closing import GOING_AWAY
from services.common.hosts import HostCheck
from services.common.logs import get_logger
from services.dev_core.harness.channel import Serving
from services.dev_core.harness.connection import MAX_MESSAGE_BYTES, Connection, HarnessSocket
from services.dev_core.harness.requests import HarnessRequests, Work
from services.dev_core.harness.scheduler import Scheduler

PATH: Final = "/nylorun/harness/v1"
API_HEADER: Final = "nylorun-harness-api"
STOP_REASON: Final = "core is stopping"
_CLOSE_S: Final = 1.0
_BEARER: Final = re.compile(r"bearer +([^\s]+)", re.IGNORECASE)
_QUEUED_FRAMES: Final = 64


class HarnessListener:
    """Serves harnesses until it is stopped."""

    def __init__(
        self,
        requests: HarnessRequests,
        scheduler: Scheduler,
        *,
        tokens: Iterable[str],
        hosts: HostCheck,
        ping_ms: int,
        silence_ms: int,
    ) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]
        self._hosts = hosts
        self._ping_ms = ping_ms
        self._silence_ms = silence_ms
        self._server: Server | None = None
        self._closing = False

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port that was bound. Raises OSError."""
        self._server = await serve(
            self._handle,
            host,
            port,
            process_request=self._check,
            create_connection=HarnessSocket,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=_QUEUED_FRAMES,
            ping_interval=None,
            close_timeout=_CLOSE_S,
            server_header=None,
        )
        bound = int(self._server.sockets[0].getsockname()[1])
        self._hosts.add_loopback(bound)
        return bound

    def close_door(self) -> None:
        """Refuses further upgrades."""
        self._closing = True

    async def stop(self) -> None:
        """Closes every connection with 1001, drops those that do not answer within a second."""
        self.close_door()
        for connection in list(self._scheduler.connections.values()):
            connection.close(GOING_AWAY, STOP_REASON)
        if self._server is not None:
            self._server.close(close_connections=False)
            await self._server.wait_closed()

    def _check(self, socket: ServerConnection, request: Request) -> Response | None:
        upgrade = request.headers.get_all("Upgrade")
        if request.method != "GET" or not any("websocket" in value.lower() for value in upgrade):
            return _refuse(HTTPStatus.UPGRADE_REQUIRED, ("Upgrade", "websocket"))
        if self._closing:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        if request.path.partition("?")[0] != PATH:
            return _refuse(HTTPStatus.NOT_FOUND)
        if not self._hosts.allows(_only(request.headers, "Host")):
            return _refuse(HTTPStatus.MISDIRECTED_REQUEST)
        if not self._knows(_only(request.headers, "Authorization")):
            return _refuse(HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", "Bearer"))
        if _only(request.headers, API_HEADER) != "1":
            return _refuse(HTTPStatus.UPGRADE_REQUIRED, (API_HEADER, "1"))
        return None

    def _knows(self, authorization: str | None) -> bool:
        match = _BEARER.fullmatch(authorization or "")
        if match is None:
            return False
        digest = hashlib.sha256(match[1].encode("utf-8", "surrogateescape")).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found

    async def _handle(self, socket: ServerConnection) -> None:
        assert isinstance(socket, HarnessSocket)
        connection: Connection

        def serve_one(serving: Serving) -> Work:
            return self._requests.serve(connection, serving)

        connection = Connection(socket, serve_one, ping_ms=self._ping_ms, silence_ms=self._silence_ms)
        self._scheduler.attach(connection)
        if self._closing:
            connection.close(GOING_AWAY, STOP_REASON)
        try:
            await connection.serve()
        finally:
            self._scheduler.detach(connection)
            get_logger().info("harness_detached", reason=connection.end_reason)
            await asyncio.shield(connection.wind_down())


def _only(headers: Headers, name: str) -> str | None:
    try:
        return headers.get(name)
    except MultipleValuesError:
        return None


def _refuse(status: HTTPStatus, *headers: tuple[str, str]) -> Response:
    fields = Headers([("Connection", "close"), ("Content-Length", "0"), *headers])
    return Response(status.value, status.phrase, fields, b"")
