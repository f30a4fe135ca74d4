"""A strict Model Gate: schema, tokens, calls by key, conflicts, cancel (model-executor 5), over a socket.

`provider` stands for the provider behind the gate; `provider_calls` counts what it would bill. Who a run token
stands for is said by `tokens`, or by `authority` (a core, see core_tokens.py). `acts` are done to the next call
requests, one each: "reset early" (before the body is read), "reset", "truncate", "silent", "drip", an event (the
request is looked at when it is set) or an answer (status, body, headers).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from protocol.canonical import canonical_request
from protocol.jsjson import JsonError, dumps, loads
from tests.doubles.http import HttpDouble, Request, Wire

PATH = "/nylorun/v1/model-calls"
TENANT = "tn_" + "0" * 26
MAX_BODY = 32 * 1024 * 1024
KEEP_S = 30 * 60
_CANCEL = re.compile(re.escape(PATH) + r"/([A-Za-z0-9\-_.!~*'()%]+)/cancel")


@dataclass
class Grant:
    """What a run token says, and whether its lease lives."""

    session: str = "s"
    turn: str = "turn"
    agent: str = "agent"
    epoch: int = 1
    tenant: str = TENANT
    live: bool = True
    valid: bool = True


@dataclass
class _Call:
    session: str
    digest: str
    epoch: int
    task: asyncio.Task[Any]
    settled_at: float | None = None


async def _hello(body: Any) -> Any:
    return "hello"


@dataclass
class ModelGateDouble(HttpDouble):
    tokens: dict[str, Grant] = field(default_factory=lambda: {"token-1": Grant()})
    authority: Callable[[str], Awaitable[Grant | None]] | None = None
    provider: Callable[[Any], Awaitable[Any]] = _hello
    provider_calls: int = 0
    acts: deque[Any] = field(default_factory=deque)
    cancels: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    closed_by_client: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    drip_s: float = 0.06
    drips: int = 8
    clock: Callable[[], float] | None = None
    calls: dict[str, _Call] = field(default_factory=dict)

    @property
    def model_calls(self) -> list[Request]:
        return [request for request in self.requests if request.target == PATH]

    def now(self) -> float:
        return (self.clock or asyncio.get_running_loop().time)()

    def forget_all(self) -> None:
        """A restart of the gateway: nothing is known any more."""
        for call in self.calls.values():
            call.task.cancel()
        self.calls.clear()

    async def before_body(self, request: Request, wire: Wire) -> bool:
        if request.target == PATH and self.acts and self.acts[0] == "reset early":
            self.acts.popleft()
            wire.reset()
            return False
        return True

    async def serve(self, request: Request, wire: Wire) -> None:
        if request.method != "POST":
            return await _error(wire, 404, "not_found", "no such route")
        if request.target == PATH:
            self.arrived.set()
            act = self.acts.popleft() if self.acts else None
            return await self._call(request, wire, act)
        found = _CANCEL.fullmatch(request.target)
        if found is not None:
            return await self._cancel(request, wire, unquote(found[1]))
        return await _error(wire, 404, "not_found", "no such route")

    async def _grant(self, request: Request) -> Grant | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer":
            return None
        grant = self.tokens.get(token) if self.authority is None else await self.authority(token)
        return grant if grant is not None and grant.valid else None

    async def _call(self, request: Request, wire: Wire, act: Any) -> None:
        if isinstance(act, tuple):
            status, body, headers = act
            return await wire.answer(status, body.encode(), headers)
        if act == "reset":
            return wire.reset()
        if act == "silent":
            await wire.gone.wait()
            self.closed_by_client.set()
            return None
        if isinstance(act, asyncio.Event):
            await act.wait()
        grant = await self._grant(request)
        refused = self._refusal(request, grant)
        if refused is not None:
            self.refusals.append(refused[1])
            return await _error(wire, *refused)
        body = loads(request.body.decode())
        assert grant is not None
        assert isinstance(body, dict)
        outcome = await self._keyed(request, wire, grant, body)
        if outcome is None:
            return None
        text = dumps({"outcome": outcome[0]}).encode()
        if act == "truncate":
            await wire.answer(200, text[:-3], length=len(text))
            return wire.close()
        if act == "drip":
            await wire.head(200, {"content-length": str(len(text) + self.drips)})
            for _ in range(self.drips):
                await asyncio.sleep(self.drip_s)
                await wire.send(b" ")
            return await wire.send(text)
        return await wire.answer(200, text)

    def _refusal(self, request: Request, grant: Grant | None) -> tuple[int, str, str] | None:
        """Checks in the gate's order."""
        if grant is None:
            return 401, "gate_unauthorized", "the run token is not valid"
        if not grant.live:
            return 409, "run_stale", "the lease is over"
        if len(request.body) > MAX_BODY:
            return 400, "invalid_request", "too big"
        if request.headers.get("nylorun-tenant", grant.tenant) != grant.tenant:
            return 400, "invalid_request", "another Tenant"
        try:
            body = loads(request.body.decode())
        except (JsonError, UnicodeDecodeError):
            return 400, "invalid_request", "not JSON"
        wrong = _schema(body)
        return (400, "invalid_request", wrong) if wrong else None

    async def _keyed(self, request: Request, wire: Wire, grant: Grant, body: Any) -> tuple[Any] | None:
        """The outcome, or None when the client was answered or is gone."""
        key = request.headers["idempotency-key"]
        named = {"sessionId": grant.session, "turnId": grant.turn, "agentId": grant.agent, **body}
        digest = hashlib.sha256(canonical_request(named)).hexdigest()
        call = self.calls.get(key)
        if call is not None and call.settled_at is not None and self.now() - call.settled_at >= KEEP_S:
            call = None
        if call is not None:
            if call.session != grant.session or call.digest != digest:
                self.refusals.append("gate_conflict")
                await _error(wire, 409, "gate_conflict", "the key is another call's")
                return None
            if grant.epoch < call.epoch:
                self.refusals.append("run_stale")
                await _error(wire, 409, "run_stale", "an older epoch")
                return None
            call.epoch = grant.epoch
        else:
            self.provider_calls += 1
            call = _Call(grant.session, digest, grant.epoch, asyncio.ensure_future(self.provider(body)))
            self.calls[key] = call
            call.task.add_done_callback(lambda task: self._settled(key, task))
        gone = asyncio.ensure_future(wire.gone.wait())
        await asyncio.wait({call.task, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not call.task.done():
            self.closed_by_client.set()
            return None
        if call.task.cancelled():
            wire.close()
            return None
        return (call.task.result(),)

    def _settled(self, key: str, task: asyncio.Task[Any]) -> None:
        call = self.calls.get(key)
        if call is None or call.task is not task:
            return
        if task.cancelled():
            del self.calls[key]
        else:
            call.settled_at = self.now()

    async def _cancel(self, request: Request, wire: Wire, effect_id: str) -> None:
        self.cancels.append(effect_id)
        grant = await self._grant(request)
        if grant is None:
            return await _error(wire, 401, "gate_unauthorized", "the run token is not valid")
        if request.headers.get("content-length") != "0" or request.body:
            return await _error(wire, 400, "invalid_request", "a cancel has no body")
        call = self.calls.get(effect_id)
        if call is not None and call.session != grant.session:
            return await _error(wire, 403, "gate_forbidden", "another session's call")
        if call is not None:
            call.task.cancel()
        self.cancelled.set()
        return await wire.send(b"HTTP/1.1 204 No Content\r\n\r\n")


def _schema(body: Any) -> str:
    if not isinstance(body, dict) or set(body) != {"effectId", "invocationId", "call"}:
        return "exactly effectId, invocationId and call"
    if not all(isinstance(body[name], str) and body[name] for name in ("effectId", "invocationId")):
        return "ids are non-empty texts"
    call = body["call"]
    if not isinstance(call, dict) or not isinstance(call.get("prompt"), list):
        return "call.prompt is a list"
    tools = call.get("tools")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools
    ):
        return "call.tools is a list of named tools"
    return ""


async def _error(wire: Wire, status: int, code: str, message: str) -> None:
    await wire.answer(status, json.dumps({"error": {"code": code, "message": message}}).encode())
