"""A Tool Gate in this process: its core, its tokens, and a client that speaks the contract to the letter."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from yarl import URL

from protocol.canonical import manifest_hash
from services.tool_gate.credentials import GateConfig
from services.tool_gate.main import Ready, run
from services.tool_gate.settings import Settings

BOUND = 20.0
SESSION, OTHER = "session-1", "session-2"
BASE = "/nylorun/v1"
FAR = {"capabilityId": "cap", "serverName": "far"}
KEY = ec.generate_private_key(ec.SECP256R1())


def jwks(key: ec.EllipticCurvePrivateKey = KEY, kid: str = "k1") -> dict[str, Any]:
    return {"keys": [{**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}]}


def token(
    session: str = SESSION,
    epoch: int = 1,
    *,
    key: ec.EllipticCurvePrivateKey = KEY,
    kid: str = "k1",
    typ: str = "nylorun-run+jwt",
    algorithm: str = "ES256",
    **claims: Any,
) -> str:
    now = int(time.time())
    given = {
        "iss": "tn_dev",
        "aud": "nylorun-gates",
        "sub": session,
        "trn": "turn-1",
        "agt": "agent",
        "epc": epoch,
        "iat": now,
        "exp": now + 900,
        "jti": f"{session}/{epoch}",
        **claims,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={"typ": typ, "kid": kid})


def manifest(*servers: Mapping[str, Any], child: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A root manifest with the servers in one capability; `child` is a server of an agent used as a tool."""
    tools = []
    if child is not None:
        inner = {"id": "cap", "type": "agent", "mcpServers": {child["name"]: dict(child)}}
        agent = {"manifestSchemaVersion": 4, "id": "helper", "capabilities": [inner]}
        tools = [{"name": "helper", "inputSchema": {"type": "object"}, "agent": agent}]
    return {
        "manifestSchemaVersion": 4,
        "id": "agent",
        "capabilities": [
            {
                "id": "cap",
                "type": "agent",
                "mcpServers": {server["name"]: dict(server) for server in servers},
                **({"tools": tools} if tools else {}),
            }
        ],
    }


@dataclass
class Core:
    """A core as far as a gate asks it: sessions with their epoch, their status and their manifest."""

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    manifests: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=jwks)
    asked: list[str] = field(default_factory=list)
    url: str = ""
    down: bool = False
    bearer: str | None = None

    def pin(
        self, document: Mapping[str, Any], *sessions: str, epoch: int = 1, status: str = "running"
    ) -> None:
        hash_ = manifest_hash(document)
        self.manifests[hash_] = document
        for session in sessions or (SESSION, OTHER):
            self.sessions[session] = {
                "id": session,
                "epoch": epoch,
                "status": status,
                "manifestHash": hash_,
            }

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.down:
            return web.Response(status=503)
        if request.path == "/.well-known/jwks.json":
            return web.json_response(self.keys)
        if self.bearer is not None and request.headers.get("Authorization") != f"Bearer {self.bearer}":
            return web.Response(status=401)
        kind, name = request.match_info["kind"], request.match_info["name"]
        found = (self.sessions if kind == "sessions" else self.manifests).get(name)
        return web.json_response(found) if found is not None else web.Response(status=404)


@contextlib.asynccontextmanager
async def serving_core(core: Core) -> AsyncIterator[Core]:
    app = web.Application()
    app.router.add_get("/.well-known/jwks.json", core.answer)
    app.router.add_get("/v1/{kind}/{name}", core.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    core.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield core
    finally:
        await runner.cleanup()


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> Any:
        return self.body["error"]["code"]

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


class Client:
    """What a harness sends."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        bearer: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        given = {} if bearer is None else {"Authorization": f"Bearer {bearer or token()}"}
        if body is not None:
            given["Content-Type"] = "application/json"
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with asyncio.timeout(BOUND):
            async with self.http.post(
                URL(self.url + path, encoded=True),
                data=io.BytesIO(data),
                headers={**given, **(headers or {})},
            ) as answer:
                content = await answer.read()
        return Answer(answer.status, json.loads(content) if content else None, answer.headers)

    async def get(self, path: str) -> Answer:
        async with asyncio.timeout(BOUND):
            async with self.http.get(self.url + path) as answer:
                content = await answer.read()
        return Answer(answer.status, json.loads(content) if content else None, answer.headers)

    async def connect(self, server: Mapping[str, Any] = FAR, **given: Any) -> Answer:
        return await self.post(f"{BASE}/mcp/connect", {"server": server}, **given)

    async def list_page(
        self, cursor: str | None = None, server: Mapping[str, Any] = FAR, **given: Any
    ) -> Answer:
        more = {} if cursor is None else {"cursor": cursor}
        return await self.post(f"{BASE}/mcp/list", {"server": server, **more}, **given)

    async def close(self, server: Mapping[str, Any] = FAR, **given: Any) -> Answer:
        return await self.post(f"{BASE}/mcp/close", {"server": server}, **given)

    async def call(
        self,
        name: str,
        arguments: Any = None,
        *,
        effect: str = "e1",
        server: Mapping[str, Any] = FAR,
        key: str | None = "",
        **given: Any,
    ) -> Answer:
        body = {"server": server, "effectId": effect, "name": name, "arguments": arguments or {}}
        keyed = {} if key is None else {"Idempotency-Key": key or effect}
        return await self.post(f"{BASE}/tool-calls", body, headers=keyed, **given)

    async def cancel(self, effect: str = "e1", **given: Any) -> Answer:
        encoded = effect.replace(":", "%3A")
        return await self.post(f"{BASE}/tool-calls/{encoded}/cancel", **given)

    async def fault(self, **fault: Any) -> None:
        assert (await self.post("/faults", fault, bearer=None)).status == 204


@dataclass
class Gated:
    """A running gate, its core and a client."""

    core: Core
    ready: Ready
    client: Client
    settings: Settings
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        return self.ready.url

    async def end(self) -> None:
        """Stops the gate as a signal does."""
        self.stop.set()
        async with asyncio.timeout(BOUND):
            await self.task


@contextlib.asynccontextmanager
async def gate(
    folder: Path,
    document: Mapping[str, Any] | None = None,
    *,
    core: Core | None = None,
    config: GateConfig | None = None,
    load_connector: Any = None,
    telemetry: Any = None,
    **settings: Any,
) -> AsyncIterator[Gated]:
    """A gate whose sessions have the manifest; private servers are allowed unless a config is given."""
    async with serving_core(core or Core()) as known, aiohttp.ClientSession(trust_env=False) as http:
        if document is not None:
            known.pin(document)
        made = Settings(
            host="127.0.0.1",
            port=0,
            core_url=known.url,
            keys_url=f"{known.url}/.well-known/jwks.json",
            database=folder / "gate" / "tool-gate.db",
            config=config or GateConfig(allow_private=True),
            **{"drain_s": 0.2, **settings},
        )
        async with running(made, load_connector, telemetry) as (ready, stop, task):
            yield Gated(known, ready, Client(http, ready.url), made, stop, task)


@contextlib.asynccontextmanager
async def running(
    settings: Settings, load_connector: Any = None, telemetry: Any = None
) -> AsyncIterator[tuple[Ready, asyncio.Event, asyncio.Task[None]]]:
    stop = asyncio.Event()
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run(settings, stop, ready.set_result, load_connector=load_connector, telemetry=telemetry)
    )
    try:
        async with asyncio.timeout(BOUND):
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield ready.result(), stop, task
    finally:
        stop.set()
        async with asyncio.timeout(BOUND):
            await asyncio.wait({task})


async def until(condition: Any) -> Any:
    """Waits for something that nobody tells us of."""
    async with asyncio.timeout(BOUND):
        while not (found := condition()):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.005)
    return found
