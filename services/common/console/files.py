"""Serves the files of a page. They hold nothing of anybody's; the Content-Security-Policy lets nothing run
but these files: no inline script or style, nothing from outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from aiohttp import web

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
SAFE_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""On every answer of a listener that browsers use."""

FOLDER: Final = "/console/"
"""Where pages find their files."""

_SHARED: Final = "services.common.console"
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class PageFiles:
    """The shared files and those of `package`'s folder `static`, read once."""

    def __init__(self, package: str) -> None:
        self._files: dict[str, tuple[str, bytes, str]] = {}
        for source in (_SHARED, package):
            for file in resources.files(source).joinpath("static").iterdir():
                kind = _TYPES.get(file.name.rpartition(".")[2])
                if kind is not None:
                    data = file.read_bytes()
                    self._files[file.name] = (kind, data, hashlib.sha256(data).hexdigest()[:32])

    def answer(self, request: web.BaseRequest, name: str) -> web.Response | None:
        """The file, or that the browser has it already; None when there is no such file."""
        found = self._files.get(name)
        if found is None:
            return None
        kind, data, etag = found
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "ETag": f'"{etag}"',
        }
        if request.headers.get("If-None-Match") == f'"{etag}"':
            return web.Response(status=304, headers=headers)
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)
