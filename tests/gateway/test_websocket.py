"""The real socket: what only the operating system and the library can show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from gateway.connection import Connection
from gateway.harness_api.events import MessageArrived, RequestArrived
from gateway.timing import Timing
from gateway.websocket import DialFailed, SocketClosed, WebSocketDialer
from protocol.errors import HarnessApiError
from tests.gateway.support import TOKEN

TIMING = Timing(open_timeout=2.0, close_handshake=0.3, ping=0.05, silence=0.2)
BOUND_S = 10.0


@contextlib.asynccontextmanager
async def server(
    talk: Any = None, admit: Any = None, **options: Any
) -> AsyncIterator[tuple[str, list[Request]]]:
    """A WebSocket server; `talk` serves each connection, `admit` may answer the upgrade itself."""
    requests: list[Request] = []

    async def stay(socket: ServerConnection) -> None:
        await socket.wait_closed()

    def process_request(socket: ServerConnection, request: Request) -> Response | None:
        requests.append(request)
        answer: Response | None = admit(socket, request) if admit is not None else None
        return answer

    settings: dict[str, Any] = {"ping_interval": None, "close_timeout": 0.2, **options}
    async with serve(talk or stay, "127.0.0.1", 0, process_request=process_request, **settings) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/nylorun/harness/v1", requests


async def dial(url: str, timing: Timing = TIMING) -> Any:
    async with asyncio.timeout(BOUND_S):
        return await WebSocketDialer(timing)(url, TOKEN)


async def test_the_upgrade_carries_what_core_asks_for_and_nothing_else():
    async with server() as (url, requests):
        socket = await dial(url)
        await socket.close(1000, "harness stopped")
    (request,) = requests
    headers = request.headers
    assert request.path == "/nylorun/harness/v1"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["nylorun-harness-api"] == "1"
    assert headers["Host"] == url.split("/")[2]
    for absent in ("Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol", "User-Agent", "Origin"):
        assert absent not in headers


@pytest.mark.spec("harness-api:10.1")
@pytest.mark.parametrize("status", [401, 404, 421, 426, 503])
async def test_every_refusal_of_the_upgrade_is_a_failed_dial_with_its_status(status):
    def refuse(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(HTTPStatus(status), "")

    async with server(admit=refuse) as (url, _):
        with pytest.raises(DialFailed, match=f"refused: {status}"):
            await dial(url)


async def test_redirects_are_not_followed():
    def redirect(socket: ServerConnection, request: Request) -> Response:
        response = socket.respond(HTTPStatus.FOUND, "")
        response.headers["Location"] = "/elsewhere"
        return response

    async with server(admit=redirect) as (url, requests):
        with pytest.raises(DialFailed, match="refused: 302"):
            await dial(url)
    assert len(requests) == 1


async def test_nobody_there_is_a_failed_dial_without_the_token():
    async with server() as (url, _):
        pass
    with pytest.raises(DialFailed) as failed:
        await dial(url)
    assert TOKEN not in str(failed.value)


@pytest.mark.parametrize("url", ["ws://no host/", "ws://bad..name.invalid:1/x", "ws://127.0.0.1:0/"])
async def test_an_address_that_cannot_be_dialled_is_a_failed_dial(url):
    with pytest.raises(DialFailed):
        await dial(url)


@contextlib.asynccontextmanager
async def raw_server(greeting: bytes) -> AsyncIterator[str]:
    """A server that says one thing, if anything, and then only listens."""
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(greeting)
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        gone.set()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        yield f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        await asyncio.wait_for(gone.wait(), BOUND_S)


async def test_a_server_that_never_answers_the_upgrade_is_given_up():
    async with raw_server(b"") as url:
        with pytest.raises(DialFailed, match="timed out"):
            await dial(url, Timing(open_timeout=0.1))


async def test_a_server_that_talks_something_else_is_a_failed_dial():
    async with raw_server(b"220 mail.example.com\r\n\r\n") as url:
        with pytest.raises(DialFailed):
            await dial(url)


async def test_texts_and_binaries_are_told_apart_and_the_peers_close_is_kept():
    async def talk(socket: ServerConnection) -> None:
        await socket.send("text")
        await socket.send(b"bytes")
        await socket.close(1001, "core is stopping")

    async with server(talk) as (url, _):
        socket = await dial(url)
        assert await socket.receive() == "text"
        assert await socket.receive() == b"bytes"
        with pytest.raises(SocketClosed) as closed:
            await socket.receive()
        assert (closed.value.code, closed.value.reason) == (1001, "core is stopping")
        with pytest.raises(SocketClosed):
            await socket.send(["late"])


@pytest.mark.spec("harness-api:10.35")
async def test_a_message_over_the_limit_closes_with_1009(monkeypatch):
    monkeypatch.setattr("gateway.websocket.MAX_FRAME_BYTES", 100)
    seen: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def talk(socket: ServerConnection) -> None:
        await socket.send("x" * 101)
        await socket.wait_closed()
        seen.set_result(socket.close_code)

    async with server(talk) as (url, _):
        socket = await dial(url)
        with pytest.raises(SocketClosed):
            await socket.receive()
        assert await asyncio.wait_for(seen, BOUND_S) == 1009


async def test_a_ping_counts_as_heard_and_is_answered():
    async def talk(socket: ServerConnection) -> None:
        for _ in range(3):
            await (await socket.ping())
        await socket.send("done")
        await socket.wait_closed()

    async with server(talk) as (url, _):
        socket = await dial(url)
        opened = socket.last_heard
        assert await asyncio.wait_for(socket.receive(), BOUND_S) == "done"
        assert socket.last_heard >= opened
        await socket.close(1000, "")


async def test_a_peer_that_takes_no_part_in_the_close_is_cut():
    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await socket.wait_closed()

    async with server(deaf) as (url, _):
        socket = await dial(url)
        async with asyncio.timeout(BOUND_S):
            await socket.close(1000, "harness stopped")
        with pytest.raises(SocketClosed):
            await socket.receive()


# A whole connection over a real socket


class Notes:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[MessageArrived] = []
        self.closed = asyncio.Event()

    def request_arrived(self, request: RequestArrived) -> None:
        raise AssertionError(request)

    def request_given_up(self, request_id: int, error: HarnessApiError) -> None:
        raise AssertionError(request_id)

    def message_arrived(self, message: MessageArrived) -> None:
        self.messages.append(message)

    def connection_closed(self) -> None:
        self.closed.set()


@pytest.mark.spec("harness-api:10.32")
async def test_silence_ends_a_connection_and_pings_keep_it():
    pings = asyncio.Event()

    async def talk(socket: ServerConnection) -> None:
        for _ in range(12):
            await socket.ping()
            await asyncio.sleep(0.05)
        pings.set()
        await socket.wait_closed()

    async with server(talk) as (url, _):
        connection = Connection(await dial(url), TIMING)
        notes = Notes()
        connection.handler = notes
        serving = asyncio.create_task(connection.run())
        async with asyncio.timeout(BOUND_S):
            await pings.wait()
            assert not connection.closed
            assert await serving == "nothing heard for 0 s (1006)"
        assert notes.closed.is_set()


async def test_a_cancelled_call_is_given_up_at_core():
    received: asyncio.Queue[Any] = asyncio.Queue()

    async def talk(socket: ServerConnection) -> None:
        async for text in socket:
            received.put_nowait(text)

    async with server(talk) as (url, _):
        connection = Connection(await dial(url), Timing(close_handshake=0.3))
        connection.handler = Notes()
        serving = asyncio.create_task(connection.run())
        asking = asyncio.create_task(connection.ask("lease", {}))
        async with asyncio.timeout(BOUND_S):
            assert '"m":"lease"' in await received.get()
            asking.cancel()
            assert await received.get() == '{"t":"abort","id":1}'
            connection.close(1000, "harness stopped")
            assert await serving == "harness stopped"
        assert asking.cancelled()


async def test_a_cancelled_connection_fails_its_calls_and_cuts_the_socket():
    async with server() as (url, _):
        connection = Connection(await dial(url), Timing())
        notes = Notes()
        connection.handler = notes
        serving = asyncio.create_task(connection.run())
        asking = asyncio.create_task(connection.ask("lease", {}))
        await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(HarnessApiError) as failed:
            await asking
        assert failed.value.code == "unavailable"
        assert notes.closed.is_set()


async def test_large_messages_cross_whole_in_both_directions():
    big = "x" * 8_000_000

    async def talk(socket: ServerConnection) -> None:
        message = await socket.recv()
        assert len(message) > len(big)
        await socket.send('{"t":"res","id":1,"ok":true,"r":{"cursor":1,"entries":["' + big + '"]}}')
        await socket.wait_closed()

    async with server(talk, max_size=2**26) as (url, _):
        connection = Connection(await dial(url), Timing(close_handshake=0.3))
        connection.handler = Notes()
        serving = asyncio.create_task(connection.run())
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(HarnessApiError):
                await connection.ask("effect.outcome", {"runId": "r", "effectId": "e", "value": big})
        connection.close(1000, "")
        await serving
