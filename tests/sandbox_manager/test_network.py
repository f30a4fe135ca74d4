"""What commands reach of a network, on every driver that has network rules (sandbox-manager 3, 15, 16.3.7)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.sandbox_manager.contract import Backend, Handle
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import BOUND, DRIVERS, SECOND, appears, make_driver, spec, until
from tests.sandbox_manager.world import PUBLIC, World

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Net:
    """A driver whose hosts are the tests' own, and the requests that came to them."""

    driver: Backend
    world: World
    requests: list[bytes]

    async def open(self, preset: str = "none", *allow: str) -> Handle:
        """A fresh workspace with network rules."""
        return await self.driver.open(spec(fresh_key(), network={"preset": preset, "allow": list(allow)}))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DRIVERS)
async def net(request: pytest.FixtureRequest, driver_root: Path) -> AsyncIterator[Net]:
    """Every driver that enforces rules for programs of a system."""
    world, requests = World(), list[bytes]()
    driver = make_driver(request.param, driver_root / f"{request.param}-net", world.dialer())
    if not (driver.traits.network_rules and driver.traits.real_commands):
        await driver.close()
        pytest.skip(
            "the driver runs no programs that could use a network, or leaves that to its surroundings"
        )
    probe = await driver.probe()
    if not probe.available:
        pytest.skip(f"driver {request.param}: {probe.reason}")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        if b"/hang" in requests[-1]:
            await reader.read()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    world.names = {"example.com": [PUBLIC], "a.wild.org": [PUBLIC], "inside.org": ["10.0.0.1", "::1"]}
    yield Net(driver, world, requests)
    server.close()
    await driver.close()


async def _shell(handle: Handle, command: str) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        result = await handle.exec(command, SECOND, Signal())
    return {"code": result.exit_code, "out": result.stdout, "err": result.stderr}


async def test_an_allowed_host_is_reached_and_no_other(net: Net) -> None:
    handle = await net.open("none", "example.com", "*.wild.org")
    for host in ("example.com", "a.wild.org"):
        assert (await _shell(handle, f"curl -sS http://{host}/x"))["out"] == "hi\n"
    refused = await _shell(handle, "curl -sS http://evil.org/")
    assert refused["out"] == "evil.org is not among the hosts that this sandbox may reach.\n"
    assert (await _shell(handle, "curl -sS https://evil.org/"))["code"] == 56
    assert (await _shell(handle, "curl -sS http://wild.org/"))["out"].startswith("wild.org is not among")
    handle.release()


async def test_a_tunnel_goes_through(net: Net) -> None:
    handle = await net.open("none", "example.com")
    result = await _shell(handle, "curl -sS -p http://example.com/tunnelled")
    assert result == {"code": 0, "out": "hi\n", "err": ""}
    assert net.requests[-1].startswith(b"GET /tunnelled HTTP/1.1\r\nHost: example.com\r\n")
    handle.release()


async def test_programs_find_the_proxy_in_their_environment(net: Net) -> None:
    handle = await net.open("none", "example.com")
    lines = (await _shell(handle, "env | grep -i proxy | sort"))["out"].splitlines()
    names = [line.split("=")[0] for line in lines]
    assert sorted(names) == sorted(
        ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"]
    )
    handle.release()


async def test_without_hosts_there_is_no_proxy(net: Net) -> None:
    handle = await net.open("none")
    result = await _shell(handle, "env | grep -i proxy; exec 3<>/dev/tcp/127.0.0.1/3128")
    assert result["code"] != 0
    assert result["out"] == ""
    handle.release()


@pytest.mark.parametrize("preset", ["open", "dev"])
async def test_presets_reach_no_address_and_nothing_inside(net: Net, preset: str) -> None:
    handle = await net.open(preset, "inside.org")
    for address in ("169.254.169.254", "10.0.0.1", "127.0.0.1", "[::1]", "2852039166", "0x7f.1", "localhost"):
        direct = await _shell(handle, f"curl -sS --noproxy '*' -m 2 http://{address}/")
        assert direct["code"] != 0, address
        through = await _shell(handle, f"curl -sSf --noproxy '' -m 5 http://{address}/")
        assert through["code"] != 0, address
    assert (await _shell(handle, "curl -sSf -m 5 http://inside.org/"))["code"] != 0
    assert (await _shell(handle, "curl -sSf -m 5 http://example.com/"))["code"] == (
        0 if preset == "open" else 22
    )
    assert all(address == PUBLIC for address, _ in net.world.connected)
    handle.release()


async def test_names_are_not_resolved_inside(net: Net) -> None:
    handle = await net.open("none", "example.com")
    assert (await _shell(handle, "getent hosts example.com"))["code"] != 0
    handle.release()


async def test_a_command_that_is_killed_takes_its_connections_with_it(net: Net) -> None:
    handle = await net.open("none", "example.com")
    signal = Signal()
    running = asyncio.create_task(
        handle.exec("touch began; curl -sS http://example.com/hang", SECOND, signal)
    )
    await appears(handle, "began")
    async with asyncio.timeout(BOUND):
        await until(lambda: any(b"/hang" in seen for seen in net.requests))
        signal.set("cancel")
        assert (await running).exit_code == 130
    assert (await _shell(handle, "curl -sS http://example.com/"))["out"] == "hi\n"
    handle.release()


async def test_several_workspaces_have_ways_out_of_their_own(net: Net) -> None:
    handles = [await net.open("none", "example.com") for _ in range(3)]
    handles += [await net.open("none", "a.wild.org") for _ in range(3)]
    results = await asyncio.gather(*(_shell(handle, "curl -sSf http://example.com/") for handle in handles))
    assert [result["code"] for result in results] == [0, 0, 0, 22, 22, 22]
    for handle in handles:
        handle.release()
