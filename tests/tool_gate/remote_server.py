"""A real remote MCP server, written with the official SDK: streamable HTTP (JSON or event answers) or SSE.

In a test's own loop by `serving`, or as a process: `python remote_server.py KIND PORT RECORD`, where each
tool call is a line of the file RECORD.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http import EventStore
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.types import ImageContent, TextContent
from pydantic import BaseModel

Kind = Literal["events", "json", "sse"]
"""How it answers: streamable HTTP with events or with JSON, or the older SSE transport."""


class Echo(BaseModel):
    said: str


@dataclass
class Remote:
    """What a running server saw; tests wait for `called` and let `hold` go."""

    record: Callable[[str, Any], None] | None = None
    calls: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    declaration: dict[str, Any] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    stop: Callable[[], Any] = field(default=lambda: None)
    gates: Path | None = None
    """Where the tool `hold` looks for files; without it there is no such tool."""
    refuse: int | None = None
    """An HTTP status that every request gets."""

    def note(self, name: str, arguments: Any = None, headers: Any = None) -> None:
        self.calls.append((name, arguments))
        self.headers.append({key.lower(): value for key, value in dict(headers or {}).items()})
        if self.record is not None:
            self.record(name, arguments)
            if "authorization" in self.headers[-1]:
                self.record("authorization", self.headers[-1]["authorization"])
        self.called.set()


class Events(EventStore):
    """Keeps every event, so that a stream can be taken up where it was closed."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        from mcp.server.streamable_http import EventMessage

        number = int(last_event_id)
        stream = self._events[number - 1][0]
        for at, (stream_id, message) in enumerate(self._events[number:], number + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream


def make_server(remote: Remote) -> MCPServer:
    server = MCPServer("far", version="1", log_level="CRITICAL", instructions="Mind the gap.")

    @server.tool()
    def echo(said: str, ctx: Context) -> Echo:
        """Says it again."""
        remote.note("echo", said, ctx.headers)
        return Echo(said=said)

    @server.tool(structured_output=False)
    def big(characters: int) -> str:
        """A long text."""
        remote.note("big", characters)
        return "x" * characters

    @server.tool(structured_output=False)
    async def wait(name: str) -> str:
        """Answers when it is let go."""
        remote.note("wait", name)
        try:
            await remote.hold.wait()
        except BaseException:
            remote.cancelled += 1
            raise
        return f"waited for {name}"

    if remote.gates is not None:

        @server.tool(structured_output=False)
        async def hold(name: str, ctx: Context) -> str:
            """Answers when a file of that name is there."""
            remote.note("hold", name, ctx.headers)
            try:
                while not (remote.gates / name).exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.01)
            except BaseException:
                remote.note("cancelled", name)
                raise
            return f"let go: {name}"

    @server.tool(structured_output=False)
    async def interrupted(ctx: Context) -> str:
        """Closes the stream of its own answer and answers later."""
        remote.note("interrupted")
        await ctx.close_sse_stream()
        await remote.hold.wait()
        return "after all"

    @server.tool(structured_output=False)
    async def asks(ctx: Context) -> str:
        """Asks its client this and that before it answers."""
        remote.note("asks")
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        said = []
        for ask in (ctx.session.send_ping, ctx.session.list_roots, partial(ctx.session.elicit_form, "?", {})):
            try:
                answer = await ask()
                said.append(str(answer.model_dump(exclude_none=True)))
            except MCPError as error:
                said.append(str(error.error.code))
        await ctx.session.send_tool_list_changed()
        await ctx.info("a message for the log")
        return " ".join(said)

    @server.tool(structured_output=False)
    def mixed() -> list[TextContent | ImageContent]:
        """Text, an image, text."""
        remote.note("mixed")
        return [
            TextContent(type="text", text="a"),
            ImageContent(type="image", data="aGk=", mime_type="image/png"),
            TextContent(type="text", text="b"),
        ]

    @server.tool()
    def fail() -> str:
        """Fails."""
        remote.note("fail")
        raise ToolError("no luck")

    @server.tool(structured_output=False)
    def leak(ctx: Context) -> str:
        """Shows the credential it was sent."""
        remote.note("leak")
        return f"I got {dict(ctx.headers or {}).get('authorization')}, really."

    return server


class _Quiet(uvicorn.Server):
    """A server in somebody else's loop: signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def serving(
    kind: Kind = "events",
    *,
    port: int = 0,
    remote: Remote | None = None,
    event_store: EventStore | None = None,
    retry_ms: int | None = None,
    name: str = "far",
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Remote]:
    """A server on 127.0.0.1 until the end of the block; its connections are cut then."""
    seen = remote or Remote()
    app = _app(make_server(seen), kind, event_store, retry_ms)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        _watched(app, seen), log_config=None, lifespan="on", timeout_graceful_shutdown=1, ws="none"
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    bound = listener.getsockname()[1]
    seen.url = f"http://127.0.0.1:{bound}/{'sse' if kind == 'sse' else 'mcp'}"
    seen.declaration = {
        "name": name,
        "type": "sse" if kind == "sse" else "streamable-http",
        "url": seen.url,
        **({"headers": headers} if headers else {}),
    }
    seen.stop = partial(_stop, server, task, listener)
    try:
        async with asyncio.timeout(20):
            while not server.started:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.005)
        yield seen
    finally:
        await seen.stop()


async def _stop(server: uvicorn.Server, task: asyncio.Task[None], listener: socket.socket) -> None:
    """Ends a server as a death does: its connections are cut in the middle."""
    server.should_exit = server.force_exit = True
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    async with asyncio.timeout(20):
        await asyncio.wait({task})
    listener.close()


def _app(server: MCPServer, kind: Kind, event_store: EventStore | None, retry_ms: int | None) -> Any:
    if kind == "sse":
        return server.sse_app()
    return server.streamable_http_app(
        json_response=kind == "json", event_store=event_store, retry_interval=retry_ms
    )


def _watched(app: Any, seen: Remote) -> Any:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            if "mcp-session-id" in headers:
                seen.sessions.add(headers["mcp-session-id"])
            if seen.refuse is not None:
                await send({"type": "http.response.start", "status": seen.refuse, "headers": []})
                await send({"type": "http.response.body", "body": b"go away"})
                return
        await app(scope, receive, send)

    return asgi


def main() -> None:
    kind, port, record = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])

    def write(name: str, arguments: Any) -> None:
        with record.open("a") as file:
            file.write(json.dumps([name, arguments]) + "\n")

    async def run() -> None:
        remote = Remote(record=write, gates=record.parent)
        async with serving(kind, port=port, remote=remote):  # type: ignore[arg-type]
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
