"""Serves the console's files. They hold nothing of anybody's, so they are open; what they show is not.

The Content-Security-Policy lets nothing run but these files: no inline script or style, nothing from outside.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from aiohttp import web

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
PAGES: Final = ("/", "/agents", "/fleet", "/sessions/{session}")
"""Addresses of the one page; its script draws what the address asks for."""
_FOLDER: Final = "/console/"
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def is_console(path: str) -> bool:
    """Whether a request's path is one of the console's own files or pages."""
    if path in ("/", "/agents", "/fleet") or path.startswith(_FOLDER):
        return True
    parts = path.split("/")
    return len(parts) == 3 and parts[1] == "sessions" and bool(parts[2])


class Console:
    """Handlers of the console's files, which are read once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, bytes, str]] = {}
        for file in resources.files("services.dev_core.console").joinpath("static").iterdir():
            data = file.read_bytes()
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                etag = hashlib.sha256(data).hexdigest()[:32]
                self._files[file.name] = (kind, data, etag)

    def add_to(self, app: web.Application) -> None:
        """Registers the pages and the files."""
        app.add_routes([web.get(path, self._page) for path in PAGES])
        app.add_routes([web.get(f"{_FOLDER}{{file}}", self._file)])

    async def _page(self, request: web.Request) -> web.Response:
        return self._answer(request, "index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["file"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound
        kind, data, etag = found
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "ETag": f'"{etag}"',
        }
        if request.headers.get("If-None-Match") == f'"{etag}"':
            return web.Response(status=304, headers=headers)
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)
