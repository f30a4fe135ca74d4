"""The proxy over real sockets; names and public addresses are the tests' own, servers are on loopback."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from services.common.addresses import is_own_address
from services.sandbox_manager.egress import dialer as dialing
from services.sandbox_manager.egress import proxy as proxying
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.heads import BadRequest
from services.sandbox_manager.egress.hosts import HostRules
from services.sandbox_manager.egress.proxy import EgressProxy, Slots
from services.sandbox_manager.network import make_network
from tests.common.support import socket_folder
from tests.sandbox_manager.support import BOUND
from tests.sandbox_manager.world import PUBLIC, World

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def _serving(
    world: World, server: Server, allow: Sequence[str] = ("example.com",), slots: Slots | None = None
) -> AsyncIterator[Path]:
    """The proxy's Unix socket."""
    web = await asyncio.start_server(server, "127.0.0.1", 0)
    world.port = web.sockets[0].getsockname()[1]
    rules = HostRules(make_network("none", list(allow)))
    with socket_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "egress"))
        listener.listen(proxying.BACKLOG)
        proxy = asyncio.create_task(EgressProxy(rules, world.dialer(), slots or Slots()).serve(listener))
        try:
            yield folder / "egress"
        finally:
            proxy.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await proxy
            web.close()


@contextlib.asynccontextmanager
async def _client(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        async with asyncio.timeout(BOUND):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(path: Path, request: bytes) -> bytes:
    """All that comes back."""
    async with _client(path) as (reader, writer):
        writer.write(request)
        with contextlib.suppress(OSError):
            await writer.drain()
        return await reader.read()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes, and the end after the end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def _web(seen: list[bytes]) -> Server:
    """Notes one whole request of known length; answers and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")),
            0,
        )
        seen.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                seen.append(b"more: " + await reader.readexactly(1))
        writer.close()

    return serve


async def test_a_tunnel_carries_bytes_both_ways_and_the_end_of_each() -> None:
    world = World({"example.com": [PUBLIC]})
    payload = bytes(range(256)) * 4000
    async with _serving(world, _echo) as path, _client(path) as (reader, writer):
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n" + b"early")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        writer.write(payload)
        writer.write_eof()
        assert await reader.read() == b"early" + payload
    assert (world.asked, world.connected) == (["example.com"], [(PUBLIC, 443)])


async def test_a_plain_request_reaches_the_checked_host_alone() -> None:
    world, seen = World({"example.com": [PUBLIC]}), list[bytes]()
    async with _serving(world, _web(seen)) as path:
        answer = await _answer(
            path,
            b"POST http://example.com/a HTTP/1.1\r\nHost: inner.example\r\nContent-Length: 3\r\n\r\nabc"
            b"GET http://inner.example/ HTTP/1.1\r\nHost: inner.example\r\n\r\n",
        )
    assert answer.endswith(b"\r\n\r\nhi")
    assert seen == [
        b"POST /a HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    ]
    assert world.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"CONNECT other.org:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT x.example.com:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT example.com.evil.org:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT 93.184.216.34:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT example.com:25 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT unknown.com:443 HTTP/1.1\r\n\r\n", b"502"),
        (b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"\x05\x01\x00\r\n\r\n", b"400"),
        (b"GET http://example.com/ HTTP/1.1\r\nA: " + b"x" * 70_000, b"431"),
    ],
)
async def test_everything_else_is_refused_before_anything_is_asked_or_connected(
    request_: bytes, status: bytes
) -> None:
    world = World({"example.com": [PUBLIC], "x.example.com": [PUBLIC]})
    async with _serving(world, _echo, ["example.com", "unknown.com"]) as path:
        assert (await _answer(path, request_)).split(b" ")[1] == status
    assert world.connected == []
    assert world.asked == (["unknown.com"] if status == b"502" else [])


@pytest.mark.parametrize(
    "addresses",
    [["169.254.169.254"], ["10.0.0.1", "::1"], ["::ffff:93.184.216.34"], ["127.0.0.1"], ["192.0.2.1"], []],
)
async def test_a_name_that_leads_inside_is_refused(addresses: list[str]) -> None:
    world = World({"example.com": addresses})
    async with _serving(world, _echo) as path:
        answer = await _answer(path, b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert world.connected == []


async def test_a_name_is_resolved_once_and_the_checked_address_is_connected() -> None:
    world = World()
    answers = [[PUBLIC], ["169.254.169.254"]]

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    world.resolve = rebinding  # type: ignore[method-assign]
    async with _serving(world, _echo) as path:
        assert (await _answer_of_tunnel(path)).startswith(b"HTTP/1.1 200 ")
        assert world.connected == [(PUBLIC, 443)]
        assert (await _answer_of_tunnel(path)).startswith(b"HTTP/1.1 403 ")
    assert world.connected == [(PUBLIC, 443)]


async def _answer_of_tunnel(path: Path) -> bytes:
    async with _client(path) as (reader, writer):
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
        return await reader.readuntil(b"\r\n\r\n")


async def test_private_addresses_among_public_ones_are_passed_over_and_dead_ones_too() -> None:
    world = World({"example.com": ["10.0.0.1", "1.1.1.1", PUBLIC, "8.8.8.8"]}, dead={"1.1.1.1"})
    async with _serving(world, _echo) as path:
        assert (await _answer_of_tunnel(path)).startswith(b"HTTP/1.1 200 ")
    assert world.connected == [("1.1.1.1", 443), (PUBLIC, 443)]


async def test_the_machine_s_own_public_address_is_refused() -> None:
    world = World({"example.com": [PUBLIC]}, own={PUBLIC})
    async with _serving(world, _echo) as path:
        assert (await _answer_of_tunnel(path)).startswith(b"HTTP/1.1 403 ")
    assert is_own_address("127.0.0.1")
    assert not is_own_address("1.1.1.1")
    assert not is_own_address("2606:4700::1111")


async def test_a_host_that_does_not_answer_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "ONE_ADDRESS_LIMIT_S", 0.05)
    world = World({"example.com": ["1.1.1.1", "8.8.8.8"]})

    async def never(address: str, port: int) -> socket.socket:
        world.connected.append((address, port))
        await asyncio.Event().wait()
        raise AssertionError

    world.connect = never  # type: ignore[method-assign]
    async with _serving(world, _echo) as path:
        assert (await _answer_of_tunnel(path)).startswith(b"HTTP/1.1 502 ")
    assert len(world.connected) == 2


async def test_a_resolver_that_hangs_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "RESOLVE_LIMIT_S", 0.05)

    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(BadRequest) as refused:
        await Dialer(never).dial("example.com", 443)
    assert refused.value.status == 502


async def test_more_connections_than_a_workspace_may_have_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxying, "MOST_CONNECTIONS", 2)
    world = World({"example.com": [PUBLIC]})
    async with _serving(world, _echo) as path, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            reader, writer = await stack.enter_async_context(_client(path))
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        assert (await _answer(path, b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 429 ")


async def test_connections_of_all_workspaces_wait_for_a_slot() -> None:
    world = World({"example.com": [PUBLIC]})
    async with _serving(world, _echo, slots=Slots(1)) as path:
        async with _client(path) as (reader, writer):
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            waiting = asyncio.create_task(_answer_of_tunnel(path))
            writer.write(b"x")
            await reader.readexactly(1)
            assert not waiting.done()
        assert (await waiting).startswith(b"HTTP/1.1 200 ")


async def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "HEAD_LIMIT_S", 0.05)
    monkeypatch.setattr(proxying, "IDLE_LIMIT_S", 0.05)
    world = World({"example.com": [PUBLIC]})
    async with _serving(world, _echo) as path:
        async with _client(path) as (reader, writer):
            writer.write(b"GET http://example")
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        async with _client(path) as (reader, writer):
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""


async def test_the_end_of_the_proxy_closes_every_connection() -> None:
    world = World({"example.com": [PUBLIC]})
    async with contextlib.AsyncExitStack() as stack:
        async with _serving(world, _echo) as path:
            reader, writer = await stack.enter_async_context(_client(path))
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
