"""The lane past the WebSocket library: what it takes, what it leaves to the library, and that nothing changes order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio import client
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from services.common.text_lane import FrameCutter, TextLane

LIMIT = 1 << 20
BOUND_S = 10.0
KEY = b"\x01\x80\xfe\x7f"


def frame(opcode: Opcode, data: bytes, *, masked: bool = False, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=masked)


def feed(cutter: FrameCutter, *chunks: bytes) -> list[str | bytes]:
    return [piece for chunk in chunks for piece in cutter.feed(chunk)]


def cutter(*, masked: bool = False, direct: bool = True, max_bytes: int = LIMIT) -> FrameCutter:
    made = FrameCutter(masked=masked, max_bytes=max_bytes)
    made.direct = direct
    return made


# Cutting


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[str | None, list[tuple[Opcode, bytes, bool]]]]:
    """Messages as (text of a whole one, frames)."""
    made: list[tuple[str | None, list[tuple[Opcode, bytes, bool]]]] = []
    for kind in draw(st.lists(st.sampled_from(["text", "binary", "ping", "pong", "parts"]), max_size=8)):
        text = draw(st.text(max_size=8)) * draw(st.sampled_from([0, 1, 20, 9000]))
        data = text.encode()
        match kind:
            case "text":
                made.append((text, [(Opcode.TEXT, data, True)]))
            case "binary":
                made.append((None, [(Opcode.BINARY, data, True)]))
            case "ping" | "pong":
                opcode = Opcode.PING if kind == "ping" else Opcode.PONG
                made.append((None, [(opcode, data[:125], True)]))
            case _:
                ping = (Opcode.PING, b"between", True)
                parts = [
                    (Opcode.TEXT, data, False),
                    ping,
                    (Opcode.CONT, data, False),
                    (Opcode.CONT, b"", True),
                ]
                made.append((None, parts))
    return made


@given(messages(), st.booleans(), st.booleans(), st.lists(st.integers(1, 4000), max_size=12))
def test_whole_texts_come_as_text_and_everything_else_as_it_was(
    sent: list[tuple[str | None, list[tuple[Opcode, bytes, bool]]]],
    masked: bool,
    direct: bool,
    cuts: list[int],
) -> None:
    expected: list[str | bytes] = []
    wire = b""
    for text, frames in sent:
        for opcode, data, fin in frames:
            written = frame(opcode, data, masked=masked, fin=fin)
            wire += written
            expected.append(text if direct and text is not None else written)
    chunks = []
    for cut in cuts:
        chunks.append(wire[:cut])
        wire = wire[cut:]
    assert (
        feed(cutter(masked=masked, direct=direct), *(chunk for chunk in (*chunks, wire) if chunk)) == expected
    )


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 70_000])
@pytest.mark.parametrize("masked", [False, True])
def test_a_text_of_any_length_is_cut_byte_by_byte(size: int, masked: bool) -> None:
    wire = frame(Opcode.TEXT, b"x" * size, masked=masked) + frame(Opcode.TEXT, "ü€😀".encode(), masked=masked)
    bytewise = [wire[at : at + 1] for at in range(len(wire))] if size < 200 else [wire[:9], wire[9:]]
    assert feed(cutter(masked=masked), *bytewise) == ["x" * size, "ü€😀"]


FAULTS = {
    "reserved bit": bytes((0xC1, 0)),
    "unknown opcode": bytes((0x83, 0)),
    "masking of the other side": frame(Opcode.TEXT, b"x", masked=True),
    "continuation of nothing": bytes((0x80, 0)),
    "control frame in parts": bytes((0x09, 0)),
    "long control frame": bytes((0x89, 126, 0, 126)) + b"x" * 126,
    "too long": bytes((0x81, 127)) + (LIMIT + 1).to_bytes(8, "big"),
    "text within a message in parts": bytes((0x01, 0, 0x81, 0)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_after_a_fault_all_the_rest_is_the_librarys(fault: bytes) -> None:
    good = frame(Opcode.TEXT, b"good")
    pieces = feed(cutter(), good + fault + good, good)
    assert pieces[0] == "good"
    assert all(isinstance(piece, bytes) for piece in pieces[1:])
    assert b"".join(pieces[1:]) == fault + good + good  # type: ignore[arg-type]


def test_after_a_close_all_the_rest_is_the_librarys() -> None:
    good, close = frame(Opcode.TEXT, b"good"), frame(Opcode.CLOSE, b"\x03\xe8")
    assert feed(cutter(), good + close + good, good) == ["good", close, good, good]


def test_a_text_that_is_not_utf8_is_left_to_the_library() -> None:
    bad, good = frame(Opcode.TEXT, b"\xff"), frame(Opcode.TEXT, b"good")
    assert feed(cutter(), bad + good) == [bad, "good"]


def test_a_text_is_held_back_from_the_moment_it_is_not_wanted() -> None:
    made, one = cutter(), frame(Opcode.TEXT, b"one")
    pieces = made.feed(one + one)
    assert next(pieces) == "one"
    made.direct = False
    assert list(pieces) == [one]


# Connections


class LaneServer(TextLane, ServerConnection):
    max_text_bytes = LIMIT


class LaneClient(TextLane, client.ClientConnection):
    max_text_bytes = LIMIT

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.early = asyncio.Event()
        """Something came by the library's way."""

    def process_event(self, event: object) -> None:
        super().process_event(event)
        if self.queued:
            self.early.set()


@contextlib.asynccontextmanager
async def server(talk: Callable[[Any], Awaitable[None]], kind: Any = LaneServer) -> AsyncIterator[str]:
    async with serve(
        talk, "127.0.0.1", 0, create_connection=kind, compression=None, max_size=LIMIT, ping_interval=None
    ) as listening:
        yield f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}/"


def dial(url: str, kind: Any = LaneClient) -> client.connect:
    return client.connect(
        url, create_connection=kind, compression=None, max_size=LIMIT, ping_interval=None, proxy=None
    )


TEXTS = ["", "a", "x" * 125, "x" * 126, "y" * 65535, "z" * 65536, "ü€😀" * 1000]


@pytest.mark.parametrize("lane", ["both", "client", "server"])
async def test_both_ends_understand_each_other_and_the_library(lane: str) -> None:
    async def echo(socket: Any) -> None:
        if isinstance(socket, LaneServer):
            socket.on_text = socket.post
        with contextlib.suppress(ConnectionClosed):
            async for message in socket:
                await socket.send(message)

    kind = ServerConnection if lane == "client" else LaneServer
    async with (
        asyncio.timeout(BOUND_S),
        server(echo, kind) as url,
        dial(url, client.ClientConnection if lane == "server" else LaneClient) as socket,
    ):
        got: list[str] = []
        if isinstance(socket, LaneClient):
            complete = asyncio.Event()

            def take(text: str) -> None:
                got.append(text)
                if len(got) == len(TEXTS):
                    complete.set()

            socket.on_text = take
            for text in TEXTS:
                socket.post(text)
            await complete.wait()
        else:
            for text in TEXTS:
                await socket.send(text)
                got.append(str(await socket.recv()))
        assert got == TEXTS


async def test_texts_never_overtake_what_took_the_librarys_way() -> None:
    async def talk(socket: Any) -> None:
        socket.post("early")
        await socket.recv()
        socket.post("one")
        await socket.send(b"binary")
        await socket.send(["in ", "parts"])
        socket.post("two")
        await socket.wait_closed()

    async with asyncio.timeout(BOUND_S), server(talk) as url, dial(url) as socket:
        order: list[Any] = []
        await socket.early.wait()
        socket.on_text = order.append
        socket.post("go on")
        for _ in range(4):
            order.append(await socket.recv())
            if order[-1] == "early":
                # Dealt with: what comes now may go past the library.
                socket.queued -= 1
        assert order == ["early", "one", b"binary", "in parts", "two"]


async def test_messages_that_come_with_the_answer_to_the_handshake_are_not_lost() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
        accept = hashlib.sha1(key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: "
            + base64.b64encode(accept)
            + b"\r\n\r\n"
            + frame(Opcode.TEXT, b"one")
            + b"\x81"
        )
        await writer.drain()
        await reader.readexactly(6)
        writer.write(frame(Opcode.TEXT, b"two")[1:])
        await reader.read(1)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(BOUND_S), listening, dial(url) as socket:
        assert await socket.recv() == "one"
        socket.queued -= 1
        second: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        socket.on_text = second.set_result
        socket.post("")
        assert await second == "two"


async def test_a_close_comes_after_what_was_posted_and_nothing_after_it() -> None:
    got: list[Any] = []
    over = asyncio.Event()

    async def talk(socket: Any) -> None:
        socket.on_text = got.append
        with contextlib.suppress(ConnectionClosed):
            await socket.recv()
        over.set()

    async with asyncio.timeout(BOUND_S), server(talk) as url, dial(url) as socket:
        socket.post("last")
        await socket.close(1000, "done")
        assert socket.post("late") == 0
        await over.wait()
        assert got == ["last"]


async def test_a_text_over_the_limit_closes_with_1009() -> None:
    code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def talk(socket: Any) -> None:
        socket.on_text = lambda text: None
        await socket.wait_closed()
        code.set_result(socket.protocol.close_sent.code)

    async with asyncio.timeout(BOUND_S), server(talk) as url, dial(url) as socket:
        socket.post("x" * (LIMIT + 1))
        await socket.wait_closed()
        assert await code == 1009
