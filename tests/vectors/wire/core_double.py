"""A core that does what a recording says: it accepts connections, keeps what came, and sends what it must."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from protocol import jsjson
from tests.leaks.watch import secret

PATH = "/nylorun/harness/v1"
TOKEN = secret("ab" * 32)


@dataclass
class Link:
    """One connection: what came and was not looked at yet, and how it ended."""

    socket: ServerConnection
    inbox: list[dict[str, Any]] = field(default_factory=list)
    closed: tuple[int, str] | None = None


class CoreDouble:
    """Serves on 127.0.0.1. `changed` is notified of everything that arrives."""

    def __init__(self, auto: Mapping[str, Any]) -> None:
        self.links: list[Link] = []
        self.changed = asyncio.Condition()
        self._auto = auto
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Where the harness dials."""
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}{PATH}"

    async def start(self) -> None:
        """Listens."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            compression=None,
            max_size=2**26,
            ping_interval=None,
            process_request=self._admit,
            close_timeout=0.2,
        )

    async def close(self) -> None:
        """Stops listening and drops what is open."""
        assert self._server is not None
        for link in self.links:
            link.socket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        expected = {"Authorization": f"Bearer {TOKEN}", "nylorun-harness-api": "1"}
        asked_for = [request.headers.get("Sec-WebSocket-Protocol"), request.headers.get("User-Agent")]
        if (
            request.path != PATH
            or any(request.headers.get(name) != value for name, value in expected.items())
            or any(value is not None for value in asked_for)
        ):
            return socket.respond(HTTPStatus.BAD_REQUEST, "")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link(socket)
        self.links.append(link)
        await self._notify()
        try:
            async for text in socket:
                frame: Any = jsjson.loads(text)
                if frame.get("m") in self._auto and frame.get("t") == "req":
                    answer = {"t": "res", "id": frame["id"], "ok": True, "r": self._auto[frame["m"]]}
                    await socket.send(jsjson.dumps(answer))
                    continue
                link.inbox.append(frame)
                await self._notify()
        except ConnectionClosed:
            pass
        link.closed = (socket.close_code or 1006, socket.close_reason or "")
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()
