"""A development core in this process, a scripted harness that talks to it, and a client of its HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from protocol import frames
from protocol.canonical import request_hash
from protocol.methods import check_message, check_params, check_result
from services.dev_core.main import Ready, run
from services.dev_core.settings import Address, Settings
from tests.leaks.watch import secret

TOKEN = secret("token-of-the-harness-in-tests-0123456789")
BOUND_S = 10.0

PLAIN = {
    "manifestSchemaVersion": 4,
    "id": "plain",
    "capabilities": [{"id": "base", "type": "agent", "instructions": ["You are terse."]}],
}
SANDBOX_TOOLS = ("bash", "read", "write", "edit", "grep", "glob")


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A tool that takes any object."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


HELPER = {
    "manifestSchemaVersion": 4,
    "id": "helper",
    "capabilities": [
        {"id": "desk", "type": "agent", "tools": [tool("lookup"), tool("note")]},
        {"id": "box", "type": "agent", "sandbox": {}, "tools": [tool(name) for name in SANDBOX_TOOLS]},
        {
            "id": "docs",
            "type": "agent",
            "mcpServers": {"docs": {"name": "docs", "type": "stdio", "command": "docs"}},
        },
    ],
}
SNAPSHOT = {
    "snapshotSchemaVersion": 1,
    "manifestHash": "h",
    "mcpTools": [
        {
            "capabilityId": "docs",
            "serverName": "docs",
            "serverToolName": "search",
            "name": "docs__search",
            "description": "Search.",
            "inputSchema": {"type": "object"},
        }
    ],
}
CONNECTED = {"capabilityId": "docs", "serverName": "docs", "outcome": "connected", "message": "Connected"}


class Refused(Exception):
    """Core refused a request."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Harness:
    """A scripted harness: it checks every frame of core's with the shared rules and keeps all of them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.core_requests: asyncio.Queue[frames.Request] = asyncio.Queue()
        self.aborted: list[int] = []
        self.sent: list[str] = []
        self._next = 0
        self._pending: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                assert isinstance(text, str)
                frame = frames.decode_frame(text)
                match frame:
                    case frames.Answer():
                        method, future = self._pending.pop(frame.id)
                        check_result(method, frame.r)
                        if not future.done():
                            future.set_result(frame.r)
                    case frames.Refusal():
                        _, future = self._pending.pop(frame.id, ("", None))
                        if future is not None and not future.done():
                            future.set_exception(Refused(frame.code, frame.message))
                    case frames.Message():
                        check_message(frame.m, frame.p)
                        self.messages.put_nowait((frame.m, frame.p))
                    case frames.Request():
                        check_params(frame.m, frame.p)
                        self.core_requests.put_nowait(frame)
                    case frames.AbortFrame():
                        self.aborted.append(frame.id)
        except ConnectionClosed:
            pass
        finally:
            self.closed.set()
            for _, future in self._pending.values():
                if not future.done():
                    future.set_exception(Refused("closed", "the connection is gone"))

    def start(self, method: str, params: Any) -> tuple[int, asyncio.Future[Any]]:
        """Sends a request without waiting; its id and its answer."""
        self._next += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._pending[self._next] = (method, future)
        text = frames.encode_request(self._next, method, params)
        self.sent.append(text)
        if self.closed.is_set():
            future.set_exception(Refused("closed", "the connection is gone"))
        else:
            task = asyncio.create_task(self._send(text))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return self._next, future

    async def _send(self, text: str) -> None:
        # Tasks start in the order they were made, so frames go out in the order of the calls.
        with contextlib.suppress(ConnectionClosed):
            await self.socket.send(text)

    async def ask(self, method: str, params: Any) -> Any:
        """One request and its result. Raises Refused."""
        async with asyncio.timeout(BOUND_S):
            _, future = self.start(method, params)
            return await future

    async def raw(self, text: str | bytes) -> None:
        """Sends any message."""
        await self.socket.send(text)

    async def abort(self, request_id: int) -> None:
        """Gives a request up."""
        await self.socket.send(frames.encode_abort(request_id))

    async def hello(self, *, workspace: bool = False) -> Any:
        """Introduces itself."""
        capabilities = {"workspace": {"backends": ["virtual"]}} if workspace else {}
        return await self.ask(
            "hello", {"api": 1, "name": "double", "version": "0", "capabilities": capabilities}
        )

    async def lease(self) -> Lease:
        """The next run."""
        return Lease(self, await self.ask("lease", {}))

    async def message(self) -> tuple[str, dict[str, Any]]:
        """The next message of core's."""
        async with asyncio.timeout(BOUND_S):
            return await self.messages.get()

    async def cut(self) -> None:
        """Drops the connection without a close handshake."""
        self.socket.transport.abort()
        await self.closed.wait()

    async def close(self) -> None:
        """Closes in order."""
        if not self.closed.is_set():
            await self.socket.close()
        await self._reader


@dataclass
class Lease:
    """A run, with the requests that belong to it."""

    harness: Harness
    result: dict[str, Any]
    transcript: list[Any] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.result["run"]["runId"])

    @property
    def session_id(self) -> str:
        """The run's session."""
        return str(self.result["run"]["sessionId"])

    @property
    def start(self) -> dict[str, Any]:
        """The TurnStart."""
        found: dict[str, Any] = self.result["input"]
        return found

    @property
    def prefix(self) -> str:
        """What effect ids begin with."""
        checkpoint = self.start["checkpoint"]
        return f"{checkpoint['turnId']}:{checkpoint['segment']}:"

    def effect(self, kind: str, name: str, **more: Any) -> dict[str, Any]:
        """An effect document of the run's segment."""
        checkpoint = self.start["checkpoint"]
        return {
            "effectId": f"{self.prefix}{kind}:{name}",
            "sessionId": self.session_id,
            "turnId": checkpoint["turnId"],
            "agentId": self.start["manifest"]["id"],
            "manifestHash": checkpoint["manifestHash"],
            "kind": kind,
            "context": {"invocationId": name} if kind == "model" else {"callId": name},
            **more,
        }

    def call(self, tool_name: str, name: str, capability: str = "desk", **more: Any) -> dict[str, Any]:
        """A tool effect."""
        return self.effect("tool", name, input={}, capabilityId=capability, toolName=tool_name, **more)

    def ask_intent(self, effect: dict[str, Any], hash_: str | None = None) -> dict[str, Any]:
        """The params of an intent."""
        digest = hash_ or request_hash(effect)
        return {"runId": self.id, "effect": effect, "requestHash": digest}

    async def intent(self, effect: dict[str, Any], hash_: str | None = None) -> Any:
        """Asks about an effect."""
        return await self.harness.ask("effect.intent", self.ask_intent(effect, hash_))

    async def value(self, effect: dict[str, Any], value: Any) -> Any:
        """Reports a value."""
        params = {"runId": self.id, "effectId": effect["effectId"], "value": value}
        return await self.harness.ask("effect.outcome", params)

    async def error(self, effect: dict[str, Any], error: str = "lost") -> Any:
        """Reports an error."""
        params = {"runId": self.id, "effectId": effect["effectId"], "error": error}
        return await self.harness.ask("effect.outcome", params)

    async def model(self, value: Any, name: str = "invocation_1") -> dict[str, Any]:
        """A model call from intent to outcome."""
        effect = self.effect("model", name)
        assert await self.intent(effect) == {"status": "execute"}
        assert (await self.value(effect, value))["outcome"] == {"value": value}
        return effect

    def state(self, status: str = "completed", **more: Any) -> dict[str, Any]:
        """A lean state."""
        return {"version": 1, "executionId": self.session_id, "status": status, "transcript": [], **more}

    async def output(self, method: str, **members: Any) -> Any:
        """Ends the run."""
        return await self.harness.ask(method, {"runId": self.id, **members})

    async def complete(self, *entries: Any, keep: int = 0, output: Any = "done") -> Any:
        """Ends the turn with entries after `keep` others."""
        edits = [{"keep": keep, "entries": list(entries), "length": keep + len(entries)}] if entries else []
        return await self.output(
            "turn.completed", status="completed", state=self.state(), transcript=edits, output=output
        )


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    body: Any
    headers: Any

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.body["error"]["code"])


class CoreClient:
    """A core that runs, and its HTTP API."""

    def __init__(self, ready: Ready, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        self.ready = ready
        self.http = http
        self.stop = stop
        self.harnesses: list[Harness] = []

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """One request."""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            options["data"] = io.BytesIO(data)
        async with self.http.request(method, self.ready.http + path, **options) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return Answer(response.status, json.loads(text) if is_json else text, response.headers)

    async def put(self, path: str, body: Any) -> Answer:
        """PUT."""
        return await self.call("PUT", path, body)

    async def post(self, path: str, body: Any = None) -> Answer:
        """POST."""
        return await self.call("POST", path, body)

    async def get(self, path: str) -> Answer:
        """GET."""
        return await self.call("GET", path)

    async def agent(self, manifest: Any = PLAIN, **more: Any) -> str:
        """Puts an agent."""
        answer = await self.put(f"/v1/agents/{manifest['id']}", {"manifest": manifest, **more})
        assert answer.status in (200, 201), answer
        return str(manifest["id"])

    async def session(self, agent_id: str = "plain", **more: Any) -> str:
        """A new session."""
        answer = await self.post("/v1/sessions", {"agentId": agent_id, **more})
        assert answer.status == 201, answer
        return str(answer.body["id"])

    async def say(self, session_id: str, text: Any = "hi") -> str:
        """Starts a turn."""
        answer = await self.post(f"/v1/sessions/{session_id}/messages", {"text": text})
        assert answer.status == 202, answer
        return str(answer.body["turnId"])

    async def view(self, session_id: str) -> dict[str, Any]:
        """The session's document."""
        return dict((await self.get(f"/v1/sessions/{session_id}")).body)

    async def status(self, session_id: str) -> str:
        """The session's status."""
        return str((await self.view(session_id))["status"])

    async def effects(self, session_id: str) -> dict[str, dict[str, Any]]:
        """The session's effects by what follows the segment in their ids."""
        answer = await self.get(f"/v1/sessions/{session_id}/effects?limit=1000")
        return {e["effectId"].split(":", 2)[2]: e for e in answer.body["effects"]}

    @contextlib.asynccontextmanager
    async def stream(self, session_id: str, after: int = 0) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The log as it comes."""
        headers = {"Last-Event-ID": str(after)}
        url = f"{self.ready.http}/v1/sessions/{session_id}/events"
        async with self.http.get(url, headers=headers) as response:
            assert response.content_type == "text/event-stream"
            yield _events(response)

    async def log(self, session_id: str) -> list[dict[str, Any]]:
        """The log as it stands, which has no gaps."""
        last = (await self.view(session_id))["lastSeq"]
        found: list[dict[str, Any]] = []
        if last == 0:
            return found
        async with asyncio.timeout(BOUND_S), self.stream(session_id) as events:
            async for event in events:
                found.append(event)
                if event["seq"] >= last:
                    break
        assert [event["seq"] for event in found] == list(range(1, last + 1))
        return found

    async def types(self, session_id: str) -> list[str]:
        """The types of the log."""
        return [event["type"] for event in await self.log(session_id)]

    async def until(self, session_id: str, type_: str, *, after: int = 0) -> dict[str, Any]:
        """The first event of a type after a seq."""
        async with asyncio.timeout(BOUND_S), self.stream(session_id, after) as events:
            async for event in events:
                if event["type"] == type_:
                    return event
        raise AssertionError("the stream ended")

    async def connect(self, *, hello: bool = True, workspace: bool = False) -> Harness:
        """A harness."""
        socket = await connect(
            self.ready.harness,
            additional_headers={"Authorization": f"Bearer {TOKEN}", "nylorun-harness-api": "1"},
            compression=None,
            max_size=64 * 1024 * 1024,
            ping_interval=None,
            proxy=None,
        )
        harness = Harness(socket)
        self.harnesses.append(harness)
        if hello:
            await harness.hello(workspace=workspace)
        return harness


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    kind, id_, data = "", "", ""
    buffer = b""
    async for chunk in response.content.iter_any():
        buffer += chunk
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            name, _, value = line.decode().partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                id_ = value
            elif name == "data":
                data = value
            elif not line and data:
                event = json.loads(data)
                assert event["type"] == kind
                assert str(event["seq"]) == id_
                data = ""
                yield event


DEFAULTS = Settings(
    http=Address("127.0.0.1", 0), harness=Address("127.0.0.1", 0), harness_token=TOKEN, hold_ms=0
)


@contextlib.asynccontextmanager
async def running_core(database: Path | None = None, **changes: Any) -> AsyncIterator[CoreClient]:
    """A core in this process; in memory without a database file."""
    settings = replace(DEFAULTS, **({"database": str(database)} if database else {}), **changes)
    stop = asyncio.Event()
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(settings, stop, ready.set_result))
    try:
        await asyncio.wait({task, ready}, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        headers = {"Authorization": f"Bearer {settings.core_token}"} if settings.core_token else {}
        async with aiohttp.ClientSession(headers=headers) as http:
            client = CoreClient(await ready, http, stop)
            try:
                yield client
            finally:
                for harness in client.harnesses:
                    await harness.close()
    finally:
        stop.set()
        async with asyncio.timeout(3 * BOUND_S):
            await task


async def eventually(check: Callable[[], Any], what: str) -> Any:
    """Polls a condition that nothing announces, within a bound."""
    async with asyncio.timeout(BOUND_S):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.01)
    raise AssertionError(what)
