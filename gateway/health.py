"""The gateway's loopback port: `/health` as the original has it, and what operators ask beside it.

- any method, `/health`: exactly three members, always 200 (operations 6);
- GET `/ready`: 200 when connected, not draining and all services are serving, else 503; one reason for each part
  that is in the way, and how much runs;
- GET `/fleet`: the replicas the gateway knows, and the runs it holds; ids and ages, never content;
- POST `/drain` `{"service": NAME, "target"?: ADDRESS}`: a stream of JSON lines that say what still runs.
  `"service": "harness"` stops this gateway from taking more work. A request from a page in a browser is
  refused with 403: any page could send it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from aiohttp import web

from gateway.fleet import Fleet, ServicesHealth, UnknownReplica
from protocol.jsjson import JsonError, JsonValue, dumps_bytes, loads

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 64 * 1024
DRAIN_PERIOD_S: Final = 1.0
"""How often a draining gateway says what it still holds."""

SHUTDOWN_S: Final = 1.0
"""How long an answer that is still being sent may hold the end up."""

OWN_NAME: Final = "harness"


class LinkFacts(Protocol):
    """What the port tells of the connection to core."""

    @property
    def connected(self) -> bool:
        """Hello was answered and the connection is open."""
        ...

    @property
    def problem(self) -> str | None:
        """Why there is no connection; None while there is one."""
        ...

    @property
    def draining(self) -> bool:
        """No more work is taken."""
        ...

    def facts(self) -> list[dict[str, Any]]:
        """The held runs."""
        ...

    def stop_leasing(self) -> None:
        """Takes no more work."""
        ...


class HealthPort:
    """The port, from `open` (which raises OSError when it is taken) to `close`."""

    def __init__(
        self, port: int, link: LinkFacts, services: ServicesHealth, fleet: Fleet | None = None
    ) -> None:
        self._port = port
        self._link = link
        self._services = services
        self._fleet = fleet
        self._runner: web.ServerRunner | None = None
        self.drain_period_s = DRAIN_PERIOD_S
        self.bound_port = port
        """The port that is served: another than asked for when that was 0."""

    async def open(self) -> None:
        """Begins to serve. Raises OSError."""
        server = web.Server(self._answer, access_log=None, auto_decompress=False)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, self._port)
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.bound_port = int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stops serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        # The original compares the whole URL: `/health/` and `/health?x=1` are not it.
        if request.raw_path == "/health":
            return _json({"status": "ok", "service": "nylorun-harness", "connected": self._link.connected})
        if request.method in ("GET", "HEAD") and request.path == "/ready":
            return self._ready()
        if request.method in ("GET", "HEAD") and request.path == "/fleet":
            return _json({"runs": self._link.facts(), "services": self._fleet_facts()})
        if request.method == "POST" and request.path == "/drain":
            return await self._drain(request)
        return web.Response(status=404)

    def _ready(self) -> web.Response:
        connected, missing = self._link.connected, list(self._services.missing())
        reasons: list[JsonValue] = [
            {"part": part, "reason": reason} for part, reason in self._services.reasons().items()
        ]
        if not connected:
            reasons.append(
                {"part": "core", "reason": self._link.problem or "There is no connection to the core."}
            )
        runs = len(self._link.facts())
        if self._link.draining:
            reasons.append(
                {"part": OWN_NAME, "reason": f"It drains and takes no more work; {runs} runs are left."}
            )
        ready = connected and self._services.ready() and not self._link.draining
        document: dict[str, JsonValue] = {
            "ready": ready,
            "connected": connected,
            "draining": self._link.draining,
            "missing": missing,
            "reasons": reasons,
            "runs": runs,
            "inFlight": dict(self._services.in_flight()),
        }
        return _json(document, 200 if ready else 503)

    def _fleet_facts(self) -> JsonValue:
        return {} if self._fleet is None else self._fleet.services()

    async def _drain(self, request: web.BaseRequest) -> web.StreamResponse:
        if "Origin" in request.headers:
            return _json({"error": {"code": "cross_site", "message": "Pages may not drain a gateway."}}, 403)
        try:
            service, target = await _drain_params(request)
        except ValueError as error:
            return _json({"error": {"code": "invalid", "message": str(error)}}, 400)
        if service == OWN_NAME and target is None:
            steps = self._drain_self()
        elif self._fleet is None:
            return _unknown(f"This gateway has no service {service} of its own to drain.")
        else:
            steps = self._fleet.drain(service, target)
        try:
            first = await anext(steps, None)
        except UnknownReplica as error:
            return _unknown(str(error))
        return await _stream(request, first, steps)

    async def _drain_self(self) -> AsyncIterator[dict[str, JsonValue]]:
        self._link.stop_leasing()
        while True:
            runs = self._link.facts()
            yield {"service": OWN_NAME, "running": runs}
            if not runs:
                return
            await asyncio.sleep(self.drain_period_s)


async def _drain_params(request: web.BaseRequest) -> tuple[str, str | None]:
    """(service, target). Raises ValueError with what is wrong."""
    body = await request.content.read(MAX_BODY_BYTES + 1)
    while len(body) <= MAX_BODY_BYTES and (more := await request.content.read(MAX_BODY_BYTES + 1)):
        body += more
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"The body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        document = loads(body)
    except JsonError:
        raise ValueError("The body is not JSON.") from None
    if not isinstance(document, dict) or not document.keys() <= {"service", "target"}:
        raise ValueError('The body is {"service": NAME, "target"?: ADDRESS}.')
    service, target = document.get("service"), document.get("target")
    if not isinstance(service, str) or not (target is None or isinstance(target, str)):
        raise ValueError("service is a text, and target a text or absent.")
    return service, target


async def _stream(
    request: web.BaseRequest,
    first: dict[str, JsonValue] | None,
    steps: AsyncIterator[dict[str, JsonValue]],
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    step = first
    while step is not None:
        await response.write(dumps_bytes(step) + b"\n")
        step = await anext(steps, None)
    await response.write_eof()
    return response


def _unknown(message: str) -> web.Response:
    return _json({"error": {"code": "not_found", "message": message}}, 404)


def _json(document: JsonValue, status: int = 200) -> web.Response:
    return web.Response(body=dumps_bytes(document), status=status, content_type="application/json")
