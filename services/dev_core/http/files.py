"""The HTTP API of a session's files: artifacts, the workspace, and the session's deletion."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.helpers import content_disposition_header

from services.dev_core.artifacts.naming import BYTES_TYPE, clean_name, is_media_type, type_of
from services.dev_core.artifacts.records import ArtifactVersion
from services.dev_core.core import Core
from services.dev_core.http import params
from services.dev_core.http.app import json_response, read_body
from services.dev_core.problems import Problem

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_LISTED_FILES: Final = 10_000
_VERSION: Final = "{version:[0-9]{1,15}|latest}"


class FileRoutes:
    """Handlers of files."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._files = core.files

    def add_to(self, app: web.Application) -> None:
        """Registers every route."""
        artifacts = "/v1/sessions/{session}/artifacts"
        workspace = "/v1/sessions/{session}/workspace"
        app.add_routes(
            [
                web.delete("/v1/sessions/{session}", self.delete_session),
                web.post(artifacts, self.add_artifact),
                web.get(artifacts, self.list_artifacts),
                web.get(f"{artifacts}/{{artifact}}/{_VERSION}", self.get_artifact),
                web.get(f"/v1/artifacts/{{artifact}}/{_VERSION}", self.get_artifact),
                web.post(f"{workspace}/exec", self.exec),
                web.post(f"{workspace}/read", self.read),
                web.post(f"{workspace}/write", self.write),
                web.get(f"{workspace}/list", self.list_files),
            ]
        )

    async def delete_session(self, request: web.Request) -> web.Response:
        """Deletes a session and everything of it."""
        await self._files.delete(request.match_info["session"])
        return web.Response(status=204)

    # Artifacts

    async def add_artifact(self, request: web.Request) -> web.Response:
        """Keeps the body as an artifact."""
        name = clean_name(request.query.get("name", "")) or "artifact"
        given = request.headers.get(hdrs.CONTENT_TYPE, "").strip()
        if given and not is_media_type(given):
            raise Problem("invalid", "Content-Type is a media type such as image/png.")
        made = await self._files.add(
            request.match_info["session"],
            request.content.iter_any(),
            artifact_id=request.query.get("artifactId") or None,
            name=name,
            content_type=given if given and given != BYTES_TYPE else type_of(name),
        )
        return json_response(_artifact(made), 201)

    async def list_artifacts(self, request: web.Request) -> web.Response:
        """The newest version of each artifact."""
        after = params.number(request, "after", 0)
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        found = await self._files.artifacts(request.match_info["session"], after, limit)
        more = {"after": found[-1][0]} if len(found) == limit else {}
        return json_response({"artifacts": [_artifact(each) for _, each in found], **more})

    async def get_artifact(self, request: web.Request) -> web.StreamResponse:
        """The bytes of one version; a browser saves them and shows nothing of them as a page of ours."""
        wanted = request.match_info["version"]
        found, path = await self._files.artifact(
            request.match_info.get("session"),
            request.match_info["artifact"],
            None if wanted == "latest" else int(wanted),
        )
        disposition = content_disposition_header("attachment", filename=found.name)
        headers = {
            hdrs.CONTENT_TYPE: found.content_type,
            hdrs.CONTENT_DISPOSITION: disposition,
            "Content-Security-Policy": "sandbox; default-src 'none'",
        }
        return web.FileResponse(path, headers=headers)

    # Workspace

    async def exec(self, request: web.Request) -> web.Response:
        """Runs a command."""
        body = await _object(request, ("command",), ("timeout",))
        return await self._call(request, "workspace.exec", "bash", body)

    async def read(self, request: web.Request) -> web.Response:
        """Reads a text file."""
        body = await _object(request, ("path",), ("offset", "limit"))
        return await self._call(request, "workspace.read", "read", body)

    async def write(self, request: web.Request) -> web.Response:
        """Writes a text file."""
        body = await _object(request, ("path", "content"), ())
        return await self._call(request, "workspace.write", "write", body)

    async def list_files(self, request: web.Request) -> web.Response:
        """Lists the files below a folder."""
        most = params.number(request, "limit", 1000, least=1, most=MAX_LISTED_FILES)
        folder = request.query.get("dir") or "/workspace"
        call = {"list": {"dir": folder, "maxEntries": most}}
        return json_response(await self._files.call(request.match_info["session"], "workspace.read", call))

    async def _call(self, request: web.Request, method: str, tool: str, body: dict[str, Any]) -> web.Response:
        call = {"tool": tool, "input": body}
        return json_response(await self._files.call(request.match_info["session"], method, call))


def _artifact(version: ArtifactVersion) -> dict[str, Any]:
    reference = {"artifactId": version.artifact_id, "version": version.version}
    return {**version.listed(), "reference": {**reference, "name": version.name}}


_TEXTS: Final = frozenset({"command", "path", "content"})
_MOST: Final = {"timeout": 600, "offset": 2**53 - 1, "limit": 5000}


async def _object(
    request: web.Request, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, Any]:
    body, _ = await read_body(request)
    if not isinstance(body, dict):
        raise Problem("invalid", f"The body is an object with {' and '.join(required)}.")
    unknown = sorted(set(body) - {*required, *optional})
    if unknown:
        known = ", ".join((*required, *optional))
        raise Problem("invalid", f"There is no member {unknown[0]!r} here; known: {known}.")
    for name in required:
        if name not in body:
            raise Problem("invalid", f"{name} is missing.")
    for name, value in body.items():
        if name in _TEXTS and (not isinstance(value, str) or (not value and name != "content")):
            raise Problem("invalid", f"{name} is a text{'' if name == 'content' else ' that is not empty'}.")
        if name in _MOST and not (type(value) is int and 1 <= value <= _MOST[name]):
            raise Problem("invalid", f"{name} is a whole number from 1 to {_MOST[name]}.")
    return body
