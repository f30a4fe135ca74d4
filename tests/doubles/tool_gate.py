"""A Tool Gate over a socket whose answers a test writes, byte by byte where it matters (mcp-pool 9).

`acts` are done to the next requests, one each, whatever their route: "reset early" (before the body is
read), "reset", "half" (the first half of the answer, then the end), "silent", or an answer (status, body).
Without an act `answers` says what a route answers.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.http import HttpDouble, Request, Wire

CONNECT, LIST, CLOSE = (f"/nylorun/v1/mcp/{name}" for name in ("connect", "list", "close"))
CALLS = "/nylorun/v1/tool-calls"


def ok(result: Any) -> tuple[int, Any]:
    return 200, {"ok": True, "result": result}


def failed(message: str, **members: Any) -> tuple[int, Any]:
    return 200, {"ok": False, "error": {"message": message, **members}}


def error(status: int, code: str, message: str) -> tuple[int, Any]:
    return status, {"error": {"code": code, "message": message}}


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def text(*parts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": part} for part in parts]}


async def _echo(body: Any) -> tuple[int, Any]:
    return ok({"content": [], "structuredContent": body["arguments"]})


@dataclass
class ToolGateDouble(HttpDouble):
    acts: deque[Any] = field(default_factory=deque)
    tools: list[Any] = field(default_factory=list)
    call: Callable[[Any], Awaitable[tuple[int, Any]]] = _echo
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """A tool call was read."""
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """A client went away while its call had no answer."""

    def on(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.target == path]

    def bodies(self, path: str) -> list[Any]:
        return [json.loads(request.body) for request in self.on(path)]

    async def before_body(self, request: Request, wire: Wire) -> bool:
        if self.acts and self.acts[0] == "reset early":
            self.acts.popleft()
            wire.reset()
            return False
        return True

    async def serve(self, request: Request, wire: Wire) -> None:
        act = self.acts.popleft() if self.acts else None
        if act == "reset":
            return wire.reset()
        if act == "silent":
            await wire.gone.wait()
            return self.dropped.set()
        answer = act if isinstance(act, tuple) else await self._until_gone(request, wire)
        if answer is None:
            return self.dropped.set()
        status, body = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if act == "half":
            await wire.answer(status, data[: len(data) // 2], length=len(data))
            return wire.close()
        if status == 204:
            return await wire.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        return await wire.answer(status, data)

    async def _until_gone(self, request: Request, wire: Wire) -> tuple[int, Any] | None:
        """The route's answer; None when the client went first."""
        answering = asyncio.ensure_future(self.answer(request))
        gone = asyncio.ensure_future(wire.gone.wait())
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if answering.done():
            return answering.result()
        answering.cancel()
        return None

    async def answer(self, request: Request) -> tuple[int, Any]:
        match request.target:
            case "/nylorun/v1/mcp/connect":
                return ok(None)
            case "/nylorun/v1/mcp/list":
                return ok({"tools": self.tools})
            case "/nylorun/v1/tool-calls":
                self.arrived.set()
                return await self.call(json.loads(request.body))
            case _:
                return 204, b""
