"""Upgrades that are refused: which status, in which order (harness-api 1.2)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import yarl
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.dev_core.support import BOUND_S, TOKEN, CoreClient

GOOD = {"Authorization": f"Bearer {TOKEN}", "nylorun-harness-api": "1"}


async def refuse(core: CoreClient, path: str | None = None, **changes: str | None) -> InvalidStatus:
    headers = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    url = yarl.URL(core.ready.harness)
    host = headers.pop("Host", None)
    target = f"ws://{host}" if host else f"ws://{url.authority}"
    with pytest.raises(InvalidStatus) as caught:
        await connect(
            target + (path or url.path),
            host=url.host,
            port=url.port,
            additional_headers=headers,
            proxy=None,
            compression=None,
        )
    response = caught.value.response
    assert response.headers["Connection"] == "close"
    assert response.headers["Content-Length"] == "0"
    return caught.value


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        ("/other", {"Host": "evil:1", "Authorization": None}, 404),
        ("/nylorun/harness/v1/", {}, 404),
        (None, {"Host": "evil.example:4200", "Authorization": None}, 421),
        (None, {"Authorization": None, "nylorun-harness-api": "2"}, 401),
        (None, {"Authorization": f"Bearer {TOKEN}x"}, 401),
        (None, {"Authorization": f"Basic {TOKEN}"}, 401),
        (None, {"Authorization": f"Bearer {TOKEN} more"}, 401),
        (None, {"nylorun-harness-api": None}, 426),
        (None, {"nylorun-harness-api": "1, 1"}, 426),
        (None, {"nylorun-harness-api": "01"}, 426),
    ],
)
async def test_the_first_fault_decides_the_status(
    core: CoreClient, path: str | None, changes: dict[str, str | None], status: int
) -> None:
    error = await refuse(core, path, **changes)
    assert error.response.status_code == status
    if status == 401:
        assert error.response.headers["WWW-Authenticate"] == "Bearer"
    if status == 426:
        assert error.response.headers["nylorun-harness-api"] == "1"


@pytest.mark.parametrize("changes", [{}, {"Authorization": f"bEARER   {TOKEN}"}])
async def test_the_right_headers_are_let_in_and_a_query_does_not_matter(
    core: CoreClient, changes: dict[str, str]
) -> None:
    url = core.ready.harness + "?x=1"
    async with connect(url, additional_headers={**GOOD, **changes}, proxy=None) as socket:
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_a_plain_request_is_told_to_upgrade(core: CoreClient, method: str) -> None:
    url = core.ready.harness.replace("ws://", "http://")
    async with core.http.request(method, url, headers=GOOD) as response:
        assert response.status == 426
        assert response.headers["Upgrade"] == "websocket"
        assert response.headers["Content-Length"] == "0"


async def test_while_the_core_stops_upgrades_are_refused_with_503(core: CoreClient) -> None:
    await core.agent()
    await core.say(await core.session())
    harness = await core.connect()
    await harness.lease()
    core.stop.set()
    await harness.message()
    assert (await refuse(core)).response.status_code == 503


@pytest.mark.parametrize("listener", ["http", "harness"])
@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 100_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_noise_on_a_port_disturbs_nobody(core: CoreClient, listener: str, data: bytes) -> None:
    url = yarl.URL(getattr(core.ready, listener))
    assert url.host is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        assert b"Traceback" not in answer
    writer.close()
    assert (await core.get("/health")).status == 200
    assert await core.connect()
