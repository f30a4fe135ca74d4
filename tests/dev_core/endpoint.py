"""An agent's Action endpoint for tests: scripted answers, and a record of what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web

Script = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


class Endpoint:
    """`posts` counts requests by Idempotency-Key, `intents` keeps their bodies."""

    def __init__(self) -> None:
        self.posts: Counter[str] = Counter()
        self.intents: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.url = ""
        self.script: Script = self.answer(200, {"value": {"kind": "completed", "output": "done"}})

    def answer(self, status: int, body: Any = None, *, held: bool = False) -> Script:
        """Answers that, once `go_on` is set when `held`."""

        async def script(intent: dict[str, Any]) -> web.StreamResponse:
            del intent
            if held:
                await self.go_on.wait()
            if isinstance(body, bytes):
                return web.Response(body=body, status=status)
            return web.json_response(body, status=status)

        return script

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        intent = await request.json()
        key = request.headers["Idempotency-Key"]
        assert unquote(key) == intent["effectId"]
        self.posts[key] += 1
        self.intents.append(intent)
        self.asked.set()
        return await self.script(intent)


@contextlib.asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    """An endpoint that listens."""
    made = Endpoint()
    app = web.Application()
    app.router.add_post("/actions", made._serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/actions"
        yield made
    finally:
        made.go_on.set()
        await runner.cleanup()
