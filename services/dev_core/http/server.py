"""The HTTP listener of the development core."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from services.common.hosts import HostCheck
from services.dev_core.console.pages import Console
from services.dev_core.core import Core
from services.dev_core.http.app import KEYS_PATH, json_response, make_app
from services.dev_core.http.files import FileRoutes
from services.dev_core.http.openapi import document
from services.dev_core.http.page import Page
from services.dev_core.http.routes import Routes
from services.dev_core.http.stream import STOPPING

_SHUTDOWN_S: Final = 2.0
"""How long requests in flight may still take at a stop."""


class HttpServer:
    """Serves the API and the page until it is stopped."""

    def __init__(
        self, core: Core, hosts: HostCheck, token: str | None, public_keys: Mapping[str, Any]
    ) -> None:
        self._core = core
        self._hosts = hosts
        self._public_keys = public_keys
        self._stopping = asyncio.Event()
        app = make_app(hosts, token)
        app[STOPPING] = self._stopping
        app.add_routes([web.get("/health", self._health), web.get("/openapi.json", self._openapi)])
        app.router.add_get(KEYS_PATH, self._keys)
        Routes(core).add_to(app)
        FileRoutes(core).add_to(app)
        Page(core).add_to(app)
        Console().add_to(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_S,
        )

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port that was bound. Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = int(self._runner.addresses[0][1])
        self._hosts.add_loopback(bound)
        return bound

    async def stop(self) -> None:
        """Ends event streams and the requests in flight."""
        self._stopping.set()
        self._core.bus.wake_all()
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        del request
        body = {"status": "ok", "service": "dev-core", "harness": self._core.scheduler.counts()}
        return json_response(body)

    async def _keys(self, request: web.Request) -> web.Response:
        del request
        return json_response(self._public_keys)

    async def _openapi(self, request: web.Request) -> web.Response:
        del request
        return json_response(document())
