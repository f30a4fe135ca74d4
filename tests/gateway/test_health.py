from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.fleet import UnknownReplica
from gateway.health import MAX_BODY_BYTES, HealthPort
from protocol import jsjson

BOUND = aiohttp.ClientTimeout(total=10)


class FakeLink:
    def __init__(self) -> None:
        self.connected = True
        self.problem: str | None = None
        self.draining = False
        self.runs: list[dict[str, Any]] = [{"runId": "r1", "phase": "running"}]
        self.drained = asyncio.Event()

    def facts(self) -> list[dict[str, Any]]:
        return list(self.runs)

    def stop_leasing(self) -> None:
        self.draining = True
        self.drained.set()


class FakeServices:
    def __init__(self) -> None:
        self.gone: list[str] = []

    def ready(self) -> bool:
        return not self.gone

    def missing(self) -> list[str]:
        return self.gone

    def reasons(self) -> dict[str, str]:
        return {name: f"{name} is away." for name in self.gone}

    def in_flight(self) -> dict[str, int]:
        return {"mcp-pool": 2}

    async def wait(self, ready: bool) -> None:
        raise AssertionError


class FakeFleet:
    def __init__(self) -> None:
        self.drained: list[tuple[str, str | None]] = []

    def services(self) -> dict[str, Any]:
        return {"mcp-pool": {"serving": True, "replicas": []}}

    async def drain(self, service: str, target: str | None) -> AsyncIterator[dict[str, Any]]:
        if service == "nobody":
            raise UnknownReplica("There is no service nobody.")
        self.drained.append((service, target))
        yield {"service": service, "running": 1}
        yield {"service": service, "running": 0}


class Served:
    def __init__(self, port: HealthPort, link: FakeLink, services: FakeServices, fleet: FakeFleet) -> None:
        self.port, self.link, self.services, self.fleet = port, link, services, fleet
        self.url = f"http://127.0.0.1:{port.bound_port}"

    async def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str, bytes]:
        async with (
            aiohttp.ClientSession(timeout=BOUND) as session,
            session.request(method, self.url + path, data=body) as answer,
        ):
            return answer.status, answer.headers.get("Content-Type", ""), await answer.read()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    link, services, fleet = FakeLink(), FakeServices(), FakeFleet()
    port = HealthPort(0, link, services, fleet)
    await port.open()
    try:
        yield Served(port, link, services, fleet)
    finally:
        await port.close()


@pytest.mark.spec("operations:13.14")
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
async def test_health_has_three_members_in_order_for_any_method(served, method):
    status, content_type, body = await served.ask(method, "/health")
    assert (status, content_type) == (200, "application/json")
    assert body == b'{"status":"ok","service":"nylorun-harness","connected":true}'


async def test_health_is_ok_without_a_connection(served):
    served.link.connected = False
    served.services.gone = ["mcp-pool"]
    status, _, body = await served.ask("GET", "/health")
    assert (status, jsjson.loads(body)["connected"]) == (200, False)


@pytest.mark.spec("operations:13.14")
@pytest.mark.parametrize("path", ["/health/", "/health?x=1", "/", "/Health", "/ready/x", "/drain"])
async def test_everything_else_is_an_empty_404(served, path):
    status, _, body = await served.ask("GET", path)
    assert (status, body) == (404, b"")


@pytest.mark.parametrize(
    ("connected", "gone", "draining", "parts"),
    [
        (True, [], False, {}),
        (False, [], False, {"core": "refused: 401"}),
        (True, ["mcp-pool"], False, {"mcp-pool": "mcp-pool is away."}),
        (True, [], True, {"harness": "It drains and takes no more work; 1 runs are left."}),
        (False, ["model-executor", "mcp-pool"], True, None),
    ],
)
async def test_ready_gives_one_reason_for_each_part_in_the_way_and_counts(
    served, connected, gone, draining, parts
):
    served.link.connected, served.services.gone, served.link.draining = connected, gone, draining
    served.link.problem = None if connected else "refused: 401"
    answer, _, body = await served.ask("GET", "/ready")
    document = jsjson.loads(body)
    reasons = {one["part"]: one["reason"] for one in document.pop("reasons")}
    if parts is None:
        assert sorted(reasons) == ["core", "harness", "mcp-pool", "model-executor"]
    else:
        assert reasons == parts
    assert answer == (503 if reasons else 200)
    assert document == {
        "ready": not reasons,
        "connected": connected,
        "draining": draining,
        "missing": gone,
        "runs": 1,
        "inFlight": {"mcp-pool": 2},
    }


async def test_fleet_shows_runs_and_replicas(served):
    _, _, body = await served.ask("GET", "/fleet")
    assert jsjson.loads(body) == {
        "runs": [{"runId": "r1", "phase": "running"}],
        "services": {"mcp-pool": {"serving": True, "replicas": []}},
    }


async def test_drain_streams_what_still_runs(served):
    status, content_type, body = await served.ask(
        "POST", "/drain", b'{"service":"mcp-pool","target":"ipv4:1.2.3.4:5"}'
    )
    assert (status, content_type) == (200, "application/x-ndjson")
    assert [jsjson.loads(line)["running"] for line in body.splitlines()] == [1, 0]
    assert served.fleet.drained == [("mcp-pool", "ipv4:1.2.3.4:5")]


async def test_drain_of_the_gateway_stops_leasing_and_ends_when_nothing_is_held(served):
    served.port.drain_period_s = 0.01

    async def finish() -> None:
        await served.link.drained.wait()
        served.link.runs.clear()

    finishing = asyncio.create_task(finish())
    status, _, body = await served.ask("POST", "/drain", b'{"service":"harness"}')
    await finishing
    assert status == 200
    assert jsjson.loads(body.splitlines()[-1]) == {"service": "harness", "running": []}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"service":1}', 400),
        (b'{"service":"mcp-pool","extra":1}', 400),
        (b'{"service":"mcp-pool","target":5}', 400),
        (b"x" * (MAX_BODY_BYTES + 1), 400),
        (b"[" * 2000, 400),
        (b'{"service":"nobody"}', 404),
    ],
)
async def test_a_bad_drain_is_refused_with_the_reason(served, body, status):
    answer, _, text = await served.ask("POST", "/drain", body)
    assert answer == status
    assert jsjson.loads(text)["error"]["message"]


async def test_a_packed_drain_is_refused_without_unpacking_it(served):
    async with aiohttp.ClientSession(timeout=BOUND) as http:
        url = f"http://127.0.0.1:{served.port.bound_port}/drain"
        async with http.post(url, data=b"no gzip", headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.status == 400


async def test_a_page_in_a_browser_can_not_drain(served):
    async with aiohttp.ClientSession(timeout=BOUND) as http:
        url = f"http://127.0.0.1:{served.port.bound_port}/drain"
        async with http.post(
            url, data=b'{"service":"harness"}', headers={"Origin": "https://example.org"}
        ) as answer:
            assert answer.status == 403
    assert not served.link.drained.is_set()


async def test_without_a_fleet_only_the_gateway_itself_can_be_drained():
    port = HealthPort(0, FakeLink(), FakeServices())
    await port.open()
    try:
        alone = Served(port, FakeLink(), FakeServices(), FakeFleet())
        assert (await alone.ask("POST", "/drain", b'{"service":"mcp-pool"}'))[0] == 404
        assert jsjson.loads((await alone.ask("GET", "/fleet"))[2])["services"] == {}
    finally:
        await port.close()


async def test_a_taken_port_is_an_error_at_start(served):
    with pytest.raises(OSError, match="in use"):
        await HealthPort(served.port.bound_port, FakeLink(), FakeServices()).open()
