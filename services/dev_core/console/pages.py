"""Serves the console's pages and files. They are open; what they show is not."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from services.common.console.files import FOLDER, PageFiles

PAGES: Final = ("/", "/agents", "/fleet", "/sessions/{session}")
"""Addresses of the one page; its script draws what the address asks for."""


def is_console(path: str) -> bool:
    """Whether a request's path is one of the console's own files or pages."""
    if path in ("/", "/agents", "/fleet") or path.startswith(FOLDER):
        return True
    parts = path.split("/")
    return len(parts) == 3 and parts[1] == "sessions" and bool(parts[2])


class Console:
    """Handlers of the console's files."""

    def __init__(self) -> None:
        self._files = PageFiles("services.dev_core.console")

    def add_to(self, app: web.Application) -> None:
        """Registers the pages and the files."""
        app.add_routes([web.get(path, self._page) for path in PAGES])
        app.add_routes([web.get(f"{FOLDER}{{file}}", self._file)])

    async def _page(self, request: web.Request) -> web.Response:
        return self._answer(request, "index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["file"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        found = self._files.answer(request, name)
        if found is None:
            raise web.HTTPNotFound
        return found
