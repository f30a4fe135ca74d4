"""A small HTTP/1.1 server in plain sockets: a double may answer, drip, cut or stay silent at any byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 64 * 1024


@dataclass
class Request:
    """One request as it came: the target as it was written, header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    raw_headers: list[tuple[str, str]]
    body: bytes = b""


class Wire:
    """One connection. `gone` is set when the client has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.gone = asyncio.Event()
        self.closed = False

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        """A whole answer; `length` may announce more than comes."""
        given = {
            "content-type": "application/json",
            "content-length": str(len(body) if length is None else length),
        }
        await self.head(status, {**given, **(headers or {})})
        await self.send(body)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def reset(self) -> None:
        """Cuts the connection as a dead process does: with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.closed = True

    def close(self) -> None:
        self.writer.close()
        self.closed = True

    async def unless_gone(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Does the work; stops it and gives False when the client closes the connection before its end."""
        doing = asyncio.ensure_future(work)
        reading = asyncio.ensure_future(self.reader.read(1))
        try:
            await asyncio.wait({doing, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done() and not await reading:
                self.gone.set()
                return False
            await doing
            return True
        finally:
            doing.cancel()
            reading.cancel()
            await asyncio.wait({doing, reading})
            if reading.done() and not reading.cancelled() and reading.exception() is None:
                # The beginning of the next request on this connection.
                self.reader._buffer[:0] = reading.result()  # type: ignore[attr-defined]

    async def watch(self) -> None:
        """Sets `gone` at the client's end of the connection."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass
        self.gone.set()


@dataclass
class HttpDouble:
    """Serves on 127.0.0.1. Subclasses answer in `serve`."""

    requests: list[Request] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    connections: int = 0
    keep_alive_s: float = 5.0
    _server: Any = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        return self._server.sockets[0].getsockname()[1]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, request: Request, wire: Wire) -> None:
        raise NotImplementedError

    async def before_body(self, request: Request, wire: Wire) -> bool:
        """False: the connection was dealt with before the body was read."""
        return True

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        try:
            while not wire.closed and await self._one(wire):
                pass
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass  # the client went, or the double ends
        except Exception as error:  # noqa: BLE001  (shown by the test)
            self.failures.append(error)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, wire: Wire) -> bool:
        async with asyncio.timeout(self.keep_alive_s):
            head = await wire.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _version = first.split(" ")
        raw = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        request = Request(method, target, {name.lower(): value for name, value in raw}, raw)
        self.requests.append(request)
        if not await self.before_body(request, wire):
            return False
        request.body = await self._body(request, wire)
        watching = asyncio.create_task(wire.watch()) if request.headers.get("connection") == "close" else None
        try:
            await self.serve(request, wire)
        finally:
            if watching is not None:
                watching.cancel()
        return request.headers.get("connection") != "close"

    async def _body(self, request: Request, wire: Wire) -> bytes:
        if request.headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int((await wire.reader.readline()).split(b";")[0], 16):
                body += await wire.reader.readexactly(size)
                await wire.reader.readline()
            await wire.reader.readline()
            return body
        return await wire.reader.readexactly(int(request.headers.get("content-length", "0")))


@contextlib.asynccontextmanager
async def serving(double: Any, port: int = 0) -> AsyncIterator[Any]:
    """Starts a double; ends its connections afterwards and shows what failed in it."""
    double._server = await asyncio.start_server(double._connected, "127.0.0.1", port, limit=MAX_HEAD)
    try:
        yield double
    finally:
        double._server.close()
        for task in list(double._tasks):
            task.cancel()
        if double._tasks:
            await asyncio.wait(set(double._tasks), timeout=5)
        if double.failures:
            raise double.failures[0]
