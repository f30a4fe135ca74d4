"""The command line's client of the development core, at a core that asks for a bearer and at one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli.core_client import CoreClient, CoreError, core_token

TOKEN = "sesame"


def guarded() -> web.Application:
    """A core as far as it looks at the bearer."""

    def refused(request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return None
        return web.json_response({"error": {"code": "unauthorized", "message": "Who are you?"}}, status=401)

    async def session(request: web.Request) -> web.Response:
        return refused(request) or web.json_response({"id": request.match_info["id"]})

    async def events(request: web.Request) -> web.Response:
        # What an earlier turn ended with is not this one's end.
        text = (
            'event: effect.uncertain\ndata: {"turnId":"earlier"}\n\n'
            'event: turn.completed\ndata: {"turnId":"t"}\n\n'
        )
        return refused(request) or web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.add_routes([web.get("/v1/sessions/{id}", session), web.get("/v1/sessions/{id}/events", events)])
    return app


async def test_the_token_goes_along_with_calls_and_with_the_stream() -> None:
    async with TestServer(guarded()) as server, CoreClient(str(server.make_url("")), token=TOKEN) as core:
        assert await core.session("s") == {"id": "s"}
        assert await core.turn_end("s", "t") == "turn.completed"


@pytest.mark.parametrize("token", [None, "other"])
async def test_a_core_that_refuses_the_bearer_is_quoted(token: str | None) -> None:
    async with TestServer(guarded()) as server, CoreClient(str(server.make_url("")), token=token) as core:
        with pytest.raises(CoreError, match="Who are you"):
            await core.session("s")
        with pytest.raises(CoreError, match="Who are you"):
            await core.turn_end("s", "t")


def test_the_token_is_read_from_the_setting_or_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert core_token({}) is None
    assert core_token({"WHIPPLETREE_CORE_TOKEN": TOKEN}) == TOKEN
    assert core_token({"WHIPPLETREE_CORE_TOKEN_FILE": str(file)}) == TOKEN
    with pytest.raises(CoreError, match="WHIPPLETREE_CORE_TOKEN_FILE can't be read"):
        core_token({"WHIPPLETREE_CORE_TOKEN_FILE": str(tmp_path / "none")})
