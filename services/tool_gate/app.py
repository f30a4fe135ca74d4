"""The gate's HTTP routes: what every request passes through, in the contract's order (mcp-pool 9.1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from protocol.jsjson import Parsed, dumps_bytes
from services.common.hosts import HostCheck
from services.common.logs import error_text, get_logger, trace_context
from services.common.metadata import TRACEPARENT
from services.common.telemetry import Telemetry, traceparent_of
from services.tool_gate import answers
from services.tool_gate.bodies import MAX_BODY_BYTES, call_request, read_json, server_request
from services.tool_gate.calls import KeyedCalls
from services.tool_gate.core import Servers, Sessions
from services.tool_gate.faults import Cut, Faults, SayUncertain
from services.tool_gate.problems import GateProblem, invalid, stale, unavailable
from services.tool_gate.servers import ToolServers
from services.tool_gate.tokens import Grant, RunTokens

BASE: Final = "/nylorun/v1"
BODY_S: Final = 60.0
"""What a request's body may take to arrive."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What the routes work with."""

    hosts: HostCheck
    tokens: RunTokens
    sessions: Sessions
    servers: ToolServers
    calls: KeyedCalls
    faults: Faults
    ready: Callable[[], bool]
    request_s: float
    """What one request to the gate may take."""
    telemetry: Telemetry = field(default_factory=Telemetry)


class GateRoutes:
    """Handlers of the contract's routes."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def application(self) -> web.Application:
        """The application with its routes and what every request passes through."""
        app = web.Application(
            middlewares=[self._trace, _answer_errors, self._check_host], client_max_size=MAX_BODY_BYTES
        )
        app.add_routes(
            [
                web.post(f"{BASE}/mcp/connect", self._connect),
                web.post(f"{BASE}/mcp/list", self._list),
                web.post(f"{BASE}/mcp/close", self._close),
                web.post(f"{BASE}/tool-calls", self._call),
                web.post(f"{BASE}/tool-calls/{{key:[^/]+}}/cancel", self._cancel),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
            ]
        )
        if self._gate.faults.on:
            app.add_routes(
                [
                    web.get("/faults", self._faults_seen),
                    web.post("/faults", self._faults_add),
                    web.delete("/faults", self._faults_clear),
                    web.post("/faults/release", self._faults_release),
                ]
            )
        return app

    @web.middleware
    async def _trace(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        # A path names effects; its pattern does not.
        route = resource.canonical if resource is not None else "unknown"
        parent = traceparent_of(request.headers.get(TRACEPARENT))
        attributes = {"http.request.method": request.method, "http.route": route}
        with self._gate.telemetry.incoming(f"{request.method} {route}", attributes, parent) as trace:
            trace_context.set(trace)
            return await handler(request)

    @web.middleware
    async def _check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._gate.hosts.allows(request.headers.get("Host")):
            raise GateProblem(
                421,
                "host_rejected",
                "This gate does not answer to that Host header: use localhost with its port, or add the "
                "name:port to WHIPPLETREE_TOOL_GATE_ALLOWED_HOSTS.",
            )
        return await handler(request)

    # -- the contract

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        grant, servers = await self._live(request)
        asked = server_request(
            await self._body(request, grant), grant.session_id, pages=False, strict=self._strict
        )
        return await self._answered(request, "connect", lambda: self._gate.servers.connect(asked, servers))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        grant, servers = await self._live(request)
        asked = server_request(
            await self._body(request, grant), grant.session_id, pages=True, strict=self._strict
        )
        return await self._answered(request, "list", lambda: self._gate.servers.list_page(asked, servers))

    async def _close(self, request: web.Request) -> web.StreamResponse:
        grant = await self._grant(request)
        asked = server_request(
            await self._body(request, grant), grant.session_id, pages=False, strict=self._strict
        )
        await self._gate.faults.strike("close", "received")
        self._gate.servers.close(asked)
        return web.Response(status=204)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        grant, servers = await self._live(request)
        asked = call_request(await self._body(request, grant), grant.session_id, strict=self._strict)
        key = request.headers.get("Idempotency-Key")
        if key is None and self._strict:
            raise invalid("Idempotency-Key is missing.")
        if key is not None and key != asked.effect_id:
            raise invalid("Idempotency-Key must be the effectId.")

        async def perform() -> str:
            return await self._gate.servers.call(asked, servers)

        async def answer() -> str:
            # Without a key the call ends with its client, and nothing of it is kept.
            return await (perform() if key is None else self._gate.calls.call(asked, grant, perform))

        return await self._answered(request, "tool-calls", answer, asked.effect_id)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        grant = await self._grant(request)
        if await self._read(request):
            raise invalid("A cancel has no body.")
        self._check_tenant(request, grant)
        effect_id = request.match_info["key"]
        self._seen(request, grant, None)
        await self._gate.faults.strike("cancel", "received", effect_id)
        self._gate.calls.cancel(effect_id, grant.session_id)
        return web.Response(status=204)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        del request
        return _json({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        del request
        if not self._gate.ready():
            raise unavailable("The Tool Gate is stopping.")
        return _json({"ready": True})

    # -- checks, in their order

    @property
    def _strict(self) -> bool:
        return self._gate.faults.on

    async def _grant(self, request: web.Request) -> Grant:
        if not self._gate.ready():
            raise unavailable("The Tool Gate is stopping; nothing was started.")
        return await self._gate.tokens.grant(request.headers.get("Authorization"))

    async def _live(self, request: web.Request) -> tuple[Grant, Servers]:
        grant = await self._grant(request)
        session = await self._gate.sessions.session(grant.session_id)
        if session is None:
            raise stale("The session was not found.")
        if not session.live or session.epoch != grant.epoch:
            raise stale("The run token's lease is over.")
        return grant, session.servers

    async def _body(self, request: web.Request, grant: Grant) -> Parsed:
        body = await self._read(request)
        self._check_tenant(request, grant)
        if self._strict:
            if request.headers.get("Content-Type") != "application/json":
                raise invalid("Content-Type must be application/json.")
            if request.headers.get("Content-Length") != str(len(body)):
                raise invalid("Content-Length must be exact.")
        parsed = read_json(body)
        self._seen(request, grant, parsed.value)
        return parsed

    async def _read(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(BODY_S):
                return await request.read()
        except TimeoutError:
            raise GateProblem(408, "timeout", f"The body did not arrive within {BODY_S:g} s.") from None
        except web.HTTPRequestEntityTooLarge:
            raise invalid(f"A body has at most {MAX_BODY_BYTES} bytes.") from None

    def _check_tenant(self, request: web.Request, grant: Grant) -> None:
        tenant = request.headers.get("Nylorun-Tenant")
        if tenant is None:
            return
        if self._strict:
            raise invalid("A harness's tool client sends no Nylorun-Tenant.")
        if grant.issuer is not None and tenant != grant.issuer:
            raise invalid("Nylorun-Tenant names another Tenant than the run token.")

    # -- answers

    async def _answered(
        self,
        request: web.Request,
        route: str,
        answer: Callable[[], Awaitable[str]],
        effect_id: str | None = None,
    ) -> web.StreamResponse:
        faults = self._gate.faults
        try:
            await faults.strike(route, "received", effect_id)
            async with asyncio.timeout(self._gate.request_s):
                text = await answer()
        except TimeoutError:
            raise GateProblem(
                504, "timeout", f"The request took longer than {self._gate.request_s:g} s."
            ) from None
        except SayUncertain:
            text = answers.uncertain(answers.UNKNOWN)
        body = text.encode()
        try:
            await faults.strike(route, "settled", effect_id)
        except SayUncertain:
            body = answers.uncertain(answers.UNKNOWN).encode()
        except Cut as cut:
            if cut.half:
                await _half(request, body)
            raise
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    # -- faults

    def _seen(self, request: web.Request, grant: Grant, body: Any) -> None:
        self._gate.faults.seen(
            {
                "path": request.raw_path,
                "sessionId": grant.session_id,
                "epoch": grant.epoch,
                "tokenId": grant.token_id,
                "key": request.headers.get("Idempotency-Key"),
                "body": body,
            }
        )

    async def _faults_seen(self, request: web.Request) -> web.StreamResponse:
        del request
        faults = self._gate.faults
        return _json(
            {
                "requests": list(faults.requests),
                "held": faults.held,
                "left": sum(fault.times for fault in faults.faults),
                "running": self._gate.calls.running,
            }
        )

    async def _faults_add(self, request: web.Request) -> web.StreamResponse:
        document = read_json(await self._read(request)).value
        if not isinstance(document, dict):
            raise invalid("A fault is an object.")
        self._gate.faults.add(document)
        return web.Response(status=204)

    async def _faults_clear(self, request: web.Request) -> web.StreamResponse:
        del request
        self._gate.faults.clear()
        return web.Response(status=204)

    async def _faults_release(self, request: web.Request) -> web.StreamResponse:
        del request
        self._gate.faults.release()
        return web.Response(status=204)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except GateProblem as problem:
        return _problem(problem)
    except Cut:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError from None
    except web.HTTPNotFound:
        return _problem(
            GateProblem(
                404,
                "not_found",
                f"There is no {request.path}: this gate reaches remote MCP servers and no models.",
            )
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        text = f"{request.path} takes {allowed}, not {request.method}."
        response = _problem(GateProblem(405, "method_not_allowed", text))
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001  (the edge: no text of an unforeseen error leaves)
        get_logger().error("gate_request_failed", path=request.path, error=error_text(error))
        return _problem(GateProblem(500, "internal", "The Tool Gate failed to serve the request."))


def _problem(problem: GateProblem) -> web.Response:
    return _json({"error": {"code": problem.code, "message": problem.message}}, problem.status)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=dumps_bytes(value), status=status, content_type="application/json", charset="utf-8"
    )


async def _half(request: web.Request, body: bytes) -> None:
    """Sends the first half of an answer that announces all of it."""
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(body))}
    )
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
