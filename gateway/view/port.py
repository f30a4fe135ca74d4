"""The gateway's port for people: a read-only page on loopback, off unless it is asked for.

- GET `/`: the page; GET `/console/FILE`: its files;
- GET `/view`: what the page shows, as JSON (`gateway.view.document`).

Requests with another Host than the port's loopback names are refused with 421, so that a page of another site
can't reach it by a name of its own that leads here. Nothing can be changed here: other methods get 405.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.fleet import Fleet
from gateway.health import HOST, SHUTDOWN_S, LinkFacts
from gateway.runs.ended import EndedRuns
from gateway.view.document import view_document
from protocol.jsjson import JsonValue, dumps_bytes
from services.common.console.files import FOLDER, SAFE_HEADERS, PageFiles
from services.common.hosts import HostCheck
from services.common.version import version

_METHODS: Final = ("GET", "HEAD")


class ViewPort:
    """The port, from `open` (which raises OSError when it is taken) to `close`."""

    def __init__(self, port: int, link: LinkFacts, ended: EndedRuns, fleet: Fleet | None) -> None:
        self._port = port
        self._link = link
        self._ended = ended
        self._fleet = fleet
        self._files = PageFiles("gateway.view")
        self._hosts = HostCheck(())
        self._runner: web.ServerRunner | None = None
        self.bound_port = port
        """The port that is served: another than asked for when that was 0."""

    async def open(self) -> None:
        """Begins to serve. Raises OSError."""
        server = web.Server(self._answer, access_log=None, auto_decompress=False)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.bound_port = int(runner.addresses[0][1])
        self._hosts.add_loopback(self.bound_port)

    async def close(self) -> None:
        """Stops serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = self._respond(request)
        response.headers.update(SAFE_HEADERS)
        return response

    def _respond(self, request: web.BaseRequest) -> web.Response:
        if not self._hosts.allows(request.headers.get("Host")):
            text = f"The view does not answer to that Host header: use http://{HOST}:{self.bound_port}/."
            return web.Response(status=421, text=text)
        if request.method not in _METHODS:
            text = "The view is read-only: it takes GET."
            return web.Response(status=405, text=text, headers={"Allow": ", ".join(_METHODS)})
        if request.path == "/view":
            body = dumps_bytes(self._document())
            headers = {"Cache-Control": "no-store"}
            return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)
        name = "index.html" if request.path == "/" else request.path.removeprefix(FOLDER)
        found = self._files.answer(request, name) if name != request.path else None
        return found or web.Response(status=404, text="There is no such page: see /.")

    def _document(self) -> dict[str, JsonValue]:
        link = self._link
        return view_document(
            gateway={
                "version": version(),
                "connected": link.connected,
                "problem": link.problem,
                "draining": link.draining,
            },
            runs=link.facts(),
            ended=self._ended.facts(),
            services={} if self._fleet is None else self._fleet.services(),
        )
