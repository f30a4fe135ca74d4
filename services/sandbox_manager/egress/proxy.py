"""The forward proxy of one workspace: tunnels and plain requests to allowed hosts, nothing else.

It serves whatever listening socket it is given: one that was made inside of a sandbox's network namespace, or
a Unix socket that a container sees. It lives in the manager's process, outside of every sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from services.common.logs import error_text, get_logger
from services.sandbox_manager.egress.bodies import BodyReader, Read
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.heads import (
    END_OF_HEAD,
    MOST_HEAD_BYTES,
    BadRequest,
    Forward,
    Tunnel,
    read_head,
    refusal,
)
from services.sandbox_manager.egress.hosts import HostRules

MOST_CONNECTIONS: Final = 64
"""Of one workspace at the same time."""
MOST_REFUSED: Final = 16
"""Connections above them that are told so; more wait in the kernel's queue."""
MOST_OF_ALL: Final = 2048
"""Of all workspaces at the same time; more wait."""
LEAST_OF_ALL: Final = MOST_CONNECTIONS + MOST_REFUSED
_DESCRIPTORS_SHARE: Final = 4
"""A connection takes two descriptors; half of them are for other things."""
HEAD_LIMIT_S: Final = 30.0
"""From the connection to the end of the request's head."""
IDLE_LIMIT_S: Final = 300.0
"""A connection on which nothing goes either way is closed."""
REFUSAL_LIMIT_S: Final = 5.0
READ_BYTES: Final = 64 * 1024
BACKLOG: Final = 128
_ACCEPT_PAUSE_S: Final = 0.1
"""After the system had no descriptor left for a connection."""


class Slots:
    """Connections of all proxies of a process: what a workspace may take, and what there is."""

    def __init__(self, most: int | None = None) -> None:
        """`most` None: what the process's limit on descriptors leaves room for, at most 2,048."""
        self._left = asyncio.Semaphore(_room() if most is None else most)

    async def take(self) -> None:
        """Waits for one."""
        await self._left.acquire()

    def give(self) -> None:
        """Gives one back."""
        self._left.release()


def _room() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OF_ALL
    return max(LEAST_OF_ALL, min(MOST_OF_ALL, soft // _DESCRIPTORS_SHARE))


class EgressProxy:
    """Serves one workspace for as long as one of its commands, or its container, runs."""

    def __init__(self, rules: HostRules, dialer: Dialer, slots: Slots) -> None:
        self._rules = rules
        self._dialer = dialer
        self._slots = slots
        self._connections = 0

    async def serve(self, listener: socket.socket) -> None:
        """Serves connections of a listening socket until it is cancelled; then all of them are closed.

        The socket stays the caller's.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        room = asyncio.Semaphore(MOST_CONNECTIONS + MOST_REFUSED)
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                await self._slots.take()
                try:
                    client, _ = await loop.sock_accept(listener)
                except BaseException as error:
                    self._slots.give()
                    room.release()
                    if not isinstance(error, OSError):
                        raise
                    get_logger().warning("sandbox_egress_accept_failed", error=error_text(error))
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                task = group.create_task(self._connection(client))
                task.add_done_callback(partial(self._ended, client, room))

    def _ended(self, client: socket.socket, room: asyncio.Semaphore, task: asyncio.Task[None]) -> None:
        del task
        client.close()
        self._slots.give()
        room.release()

    async def _connection(self, client: socket.socket) -> None:
        self._connections += 1
        try:
            client.setblocking(False)
            await self._answer(client)
        except* OSError:
            pass  # one end is gone; there is nobody to tell
        finally:
            self._connections -= 1

    async def _answer(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._connections > MOST_CONNECTIONS:
                raise BadRequest(429, f"More than {MOST_CONNECTIONS} connections at once.")
            head, early = await _read_head(client)
            request = read_head(head)
            if not self._rules.allows(request.host):
                raise BadRequest(403, f"{request.host} is not among the hosts that this sandbox may reach.")
            with await self._dialer.dial(request.host, request.port) as server:
                await _converse(request, client, server, early)
        except BadRequest as problem:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFUSAL_LIMIT_S):
                    await loop.sock_sendall(client, refusal(problem))
                    _end_of_output(client)
                    await _drain(client)


async def _converse(
    request: Tunnel | Forward, client: socket.socket, server: socket.socket, early: bytes
) -> None:
    loop = asyncio.get_running_loop()
    watch = _Idle()
    if isinstance(request, Tunnel):
        await loop.sock_sendall(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
        await loop.sock_sendall(server, early)
        await watch.guard(_both_ways(client, server, watch))
    else:
        await watch.guard(
            _one_request(request, client, server, BodyReader(early, watch.reader(client)), watch)
        )


async def _both_ways(client: socket.socket, server: socket.socket, watch: _Idle) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_pump(client, server, watch))
        group.create_task(_pump(server, client, watch))


async def _one_request(
    request: Forward, client: socket.socket, server: socket.socket, body: BodyReader, watch: _Idle
) -> None:
    async def send() -> None:
        # A server that answers before it has read everything may close, and a body may break off: the answer
        # of the server counts, or the end of the connection.
        with contextlib.suppress(OSError, BadRequest):
            await watch.write(server, request.head)
            await body.pass_on(request.body, lambda data: watch.write(server, data))

    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send())
        await _pump(server, client, watch)
        sending.cancel()


class _Idle:
    """Knows when something last went over a connection."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def reader(self, source: socket.socket) -> Read:
        """Reads of a socket."""
        return lambda most: self.read(source, most)

    async def read(self, source: socket.socket, most: int) -> bytes:
        """Bytes of a socket; none at the end."""
        data = await asyncio.get_running_loop().sock_recv(source, most)
        self._last = time.monotonic()
        return data

    async def write(self, target: socket.socket, data: bytes) -> None:
        """All the bytes."""
        await asyncio.get_running_loop().sock_sendall(target, data)
        self._last = time.monotonic()

    async def guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work until it is done or nothing has gone either way for too long."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            while not task.done():
                rest = self._last + IDLE_LIMIT_S - time.monotonic()
                if rest <= 0:
                    task.cancel()
                    return
                await asyncio.wait([task], timeout=rest)


async def _pump(source: socket.socket, target: socket.socket, watch: _Idle) -> None:
    """Passes bytes on until their end, and then the end."""
    while data := await watch.read(source, READ_BYTES):
        await watch.write(target, data)
    _end_of_output(target)


async def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """The head without its empty line, and what came after it. Raises BadRequest, OSError."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    try:
        async with asyncio.timeout(HEAD_LIMIT_S):
            while (end := data.find(END_OF_HEAD)) < 0:
                if len(data) > MOST_HEAD_BYTES:
                    raise BadRequest(431, f"The request's head has more than {MOST_HEAD_BYTES} bytes.")
                piece = await loop.sock_recv(client, READ_BYTES)
                if not piece:
                    raise ConnectionResetError
                data += piece
    except TimeoutError:
        raise BadRequest(408, "The request did not come in time.") from None
    return bytes(data[:end]), bytes(data[end + len(END_OF_HEAD) :])


async def _drain(client: socket.socket) -> None:
    """Reads what the client still sends: closing over unread bytes would take the answer back."""
    while await asyncio.get_running_loop().sock_recv(client, READ_BYTES):
        pass


def _end_of_output(target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
