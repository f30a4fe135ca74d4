"""Doubles for the gateway's tests: a core in memory, executors that do as told, a planned engine, logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.attachment import Introduction
from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    SegmentInput,
    SegmentResult,
    Step,
    Uncertain,
)
from gateway.executors.contract import AbortSignal, Discovery, ExecutionFailed, Executors, RunContext
from gateway.fleet import AlwaysReady
from gateway.link import Link
from gateway.runs.host import RunHost
from gateway.timing import Timing
from gateway.websocket import DialFailed, SocketClosed
from protocol import jsjson
from protocol.canonical import request_hash
from protocol.jsjson import Parsed
from tests.leaks.watch import secret

BOUND_S = 60.0
"""Virtual seconds that anything may take before a test gives up."""

URL = "ws://core.test:4200/nylorun/harness/v1"
TOKEN = secret("ab" * 32)
HELLO = {"api": 1, "tenantId": "tn_1", "sandbox": {"backend": None}, "renewEveryMs": 10_000}


# The core's end of a connection


def read(text: str | bytes) -> Any:
    """A frame of the harness, also one that nests deeper than our own cores read."""
    return jsjson.parse(text, max_depth=2000).value


class MemorySocket:
    """The harness's end: what the core sends is received, what is sent lands at the core."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.end = CoreEnd(self)
        self._loop = asyncio.get_running_loop()
        self.last_heard = self._loop.time()
        self._incoming: asyncio.Queue[str | bytes | SocketClosed] = asyncio.Queue()
        self._closed: SocketClosed | None = None

    async def receive(self) -> str | bytes:
        item = await self._incoming.get()
        if isinstance(item, SocketClosed):
            self._incoming.put_nowait(item)
            raise item
        return item

    def hand_over(self, receiver: Callable[[str], None]) -> None:
        """Everything comes by `receive`."""

    def try_send(self, texts: Sequence[str]) -> bool:
        if self._closed is not None or not self.end.gate.is_set():
            return False
        for text in texts:
            self.end.arrived(read(text), text)
        return True

    async def send(self, texts: Sequence[str]) -> None:
        for text in texts:
            if self._closed is not None:
                raise self._closed
            await self.end.gate.wait()
            self.end.arrived(read(text), text)

    async def close(self, code: int, reason: str) -> None:
        await self.end.gate.wait()
        self.ended(SocketClosed(code, ""), (code, reason))

    def cut(self) -> None:
        self.ended(SocketClosed(1006, ""), (1006, ""))

    def ended(self, closed: SocketClosed, seen_by_core: tuple[int, str]) -> None:
        if self._closed is None:
            self._closed = closed
            self._incoming.put_nowait(closed)
            if not self.end.closed.done():
                self.end.closed.set_result(seen_by_core)

    def deliver(self, message: str | bytes) -> None:
        if self._closed is None:
            self.last_heard = self._loop.time()
            self._incoming.put_nowait(message)


@dataclass
class Refuse:
    """An automatic answer that refuses."""

    code: str
    message: str = "no"


class CoreEnd:
    """One connection as core sees it. Requests that no automatic answer takes wait in `inbox`."""

    def __init__(self, socket: MemorySocket) -> None:
        self._socket = socket
        self.frames: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.inbox: list[dict[str, Any]] = []
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.gate = asyncio.Event()
        self.gate.set()
        self._news = asyncio.Event()
        self._next_id = 1

    # What the harness sent

    def arrived(self, frame: dict[str, Any], text: str) -> None:
        self.frames.append(frame)
        self.texts.append(text)
        self._news.set()
        auto = self._socket.core.auto.get(frame.get("m", "")) if frame["t"] == "req" else None
        if auto is None:
            self.inbox.append(frame)
            return
        result = auto(frame["p"]) if callable(auto) else auto
        if result is NEVER:
            return
        if isinstance(result, Refuse):
            self.refuse(frame, result.code, result.message)
        else:
            self.answer(frame, result)

    async def expect(self, method: str, **params: Any) -> dict[str, Any]:
        """The next request of this method whose params have these members; taken out of the inbox."""
        return await self._take(
            lambda frame: (
                frame.get("m") == method
                and all(frame["p"].get(name) == value for name, value in params.items())
            ),
            f"{method} {params}",
        )

    async def seen(self, method: str, **params: Any) -> dict[str, Any]:
        """The first request of this method with these members, also one that was answered by itself."""
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    for frame in self.frames:
                        if frame.get("m") == method and params.items() <= frame["p"].items():
                            return frame
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {method} {params}; {self.methods()} were sent") from None

    async def response(self, request_id: int) -> dict[str, Any]:
        """The harness's answer to one of our requests."""
        return await self._take(lambda frame: frame["t"] == "res" and frame["id"] == request_id, "answer")

    async def abort_of(self, frame: dict[str, Any]) -> None:
        await self._take(lambda other: other["t"] == "abort" and other["id"] == frame["id"], "abort")

    async def _take(self, fits: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    for frame in self.inbox:
                        if fits(frame):
                            self.inbox.remove(frame)
                            return frame
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {what}; the inbox holds {self.inbox}") from None

    def methods(self) -> list[str]:
        """The methods of all requests so far, in order, without hello, leases and renewals."""
        quiet = {"hello", "lease", "lease.renew"}
        return [frame["m"] for frame in self.frames if frame["t"] == "req" and frame["m"] not in quiet]

    # What core sends

    def send(self, frame: dict[str, Any] | str | bytes) -> None:
        self._socket.deliver(frame if isinstance(frame, str | bytes) else jsjson.dumps(frame))

    def answer(self, frame: dict[str, Any], result: Any) -> None:
        self.send({"t": "res", "id": frame["id"], "ok": True, "r": result})

    def refuse(self, frame: dict[str, Any], code: str, message: str = "no") -> None:
        error = {"code": code, "message": message}
        self.send({"t": "res", "id": frame["id"], "ok": False, "e": error})

    def ask(self, method: str, params: Any) -> int:
        request_id, self._next_id = self._next_id, self._next_id + 1
        self.send({"t": "req", "id": request_id, "m": method, "p": params})
        return request_id

    def tell(self, method: str, **params: Any) -> None:
        self.send({"t": "msg", "m": method, "p": params})

    def close(self, code: int = 1001, reason: str = "core is stopping") -> None:
        self._socket.ended(SocketClosed(code, reason), (code, reason))

    def ping(self) -> None:
        self._socket.last_heard = asyncio.get_running_loop().time()


NEVER = object()
"""An automatic answer that never comes."""


class Core:
    """Accepts connections in memory. `auto` answers methods at once: a result, a Refuse, NEVER, or a
    function of the params that gives one."""

    def __init__(self) -> None:
        self.auto: dict[str, Any] = {"hello": HELLO, "lease.renew": {"ok": True}, "lease.release": {}}
        self.ends: list[CoreEnd] = []
        self.dials: list[float] = []
        self.refusals: list[str] = []
        """What the next dials fail with."""
        self._news = asyncio.Event()

    async def __call__(self, url: str, token: str) -> MemorySocket:
        assert (url, token) == (URL, TOKEN)
        self.dials.append(asyncio.get_running_loop().time())
        if self.refusals:
            raise DialFailed(self.refusals.pop(0))
        socket = MemorySocket(self)
        self.ends.append(socket.end)
        self._news.set()
        return socket

    async def connection(self, number: int = 1) -> CoreEnd:
        """The n-th connection, once it is there."""
        async with asyncio.timeout(BOUND_S):
            while len(self.ends) < number:
                self._news.clear()
                await self._news.wait()
        return self.ends[number - 1]


# Executors

Behaviour = Callable[[EffectRequest, RunContext, AbortSignal, bool], Awaitable[Parsed]]


@dataclass
class Execution:
    """One execution that an executor was asked for."""

    effect: EffectRequest
    run: RunContext
    signal: AbortSignal
    rejoin: bool


class FakeExecutors:
    """Does for each effect id what `behaviours` says: a value, an exception, or a coroutine function."""

    def __init__(self) -> None:
        self.behaviours: dict[str, Any] = {}
        self.executions: list[Execution] = []
        self.started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.model_recovers = False
        self.tools_recover = False
        self.cancelled: list[str] = []
        self.grants: list[tuple[str, int, str, str | None]] = []
        self.discovery: Discovery | Exception = Discovery({"found": 1}, [])
        self.reconnection: list[Any] | Exception = []
        self.prepared: list[tuple[str, Any]] = []
        self.workspaces: Any = None

    def all(self) -> Executors:
        return Executors(_FakeModel(self), _FakeTools(self), _FakeMcp(self), self.workspaces)

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        self.executions.append(Execution(effect, run, signal, rejoin))
        behaviour = self.behaviours.get(effect.effect_id, "ok")
        self.started[effect.effect_id].set()
        if isinstance(behaviour, Exception):
            raise behaviour
        if callable(behaviour):
            return await behaviour(effect, run, signal, rejoin)
        return Parsed(behaviour, plain=True)


class _FakeModel:
    def __init__(self, fake: FakeExecutors) -> None:
        self._fake = fake
        self.execute = fake.execute

    def recovers(self) -> bool:
        return self._fake.model_recovers


class _FakeTools:
    def __init__(self, fake: FakeExecutors) -> None:
        self._fake = fake
        self.execute = fake.execute

    def recovers(self, effect: EffectRequest, run: RunContext) -> bool:
        return self._fake.tools_recover

    async def cancel(self, effect: EffectRequest, run: RunContext) -> None:
        self._fake.cancelled.append(effect.effect_id)


class _FakeMcp:
    def __init__(self, fake: FakeExecutors) -> None:
        self._fake = fake

    async def discover(self, run: RunContext, manifest_hash: str, signal: AbortSignal) -> Discovery:
        self._fake.prepared.append(("discover", manifest_hash))
        if isinstance(self._fake.discovery, Exception):
            raise self._fake.discovery
        return self._fake.discovery

    async def reconnect(self, run: RunContext, snapshot: Any, signal: AbortSignal) -> list[Any]:
        self._fake.prepared.append(("reconnect", snapshot))
        if isinstance(self._fake.reconnection, Exception):
            raise self._fake.reconnection
        return self._fake.reconnection

    async def put_grant(self, session_id: str, epoch: int, token: str, expires_at: str | None) -> None:
        self._fake.grants.append((session_id, epoch, token, expires_at))


async def until_aborted(effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool) -> Parsed:
    """Runs until the run is aborted."""
    await signal.wait()
    signal.raise_if_set()
    raise AssertionError("not aborted")


async def for_ever(effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool) -> Parsed:
    """Ignores every abort."""
    await asyncio.Event().wait()
    raise AssertionError("never")


def failing(message: str) -> ExecutionFailed:
    return ExecutionFailed(message)


# A planned engine

Plan = Generator[list[EffectRequest], dict[str, Answer], SegmentResult]


class PlannedEngine:
    """Asks for what its plan yields, a batch at a time, and goes on when all of a batch is answered."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self.events: list[Any] = []

    def start(self, now_ms: float) -> Step:
        self.events.append(("start", now_ms))
        return self._advance(None)

    def resolve(self, effect_id: str, answer: Answer, now_ms: float) -> Step:
        self.events.append((effect_id, answer))
        self._open.remove(effect_id)
        self._answers[effect_id] = answer
        return Step() if self._open else self._advance(self._answers)

    def abort(self, abort: Abort) -> Step:
        self.events.append(abort)
        return Step()

    def _advance(self, answers: dict[str, Answer] | None) -> Step:
        try:
            effects = next(self._plan) if answers is None else self._plan.send(answers)
        except StopIteration as end:
            return Step(result=end.value)
        self._open = {effect.effect_id for effect in effects}
        self._answers = {}
        return Step(effects=tuple(effects))


def one_after_another(*effects: EffectRequest) -> Callable[[SegmentInput], Plan]:
    """A plan that asks for each effect alone and stops at the first without an outcome."""

    def plan(segment: SegmentInput) -> Plan:
        answers: dict[str, Answer] = {}
        for effect in effects:
            answers.update((yield [effect]))
            if not isinstance(answers[effect.effect_id], Completed):
                break
        return result_of(answers, segment)

    return plan


def at_once(*effects: EffectRequest) -> Callable[[SegmentInput], Plan]:
    """A plan that asks for all effects in one step."""

    def plan(segment: SegmentInput) -> Plan:
        answers = (yield list(effects)) if effects else {}
        return result_of(answers, segment)

    return plan


def result_of(answers: Mapping[str, Answer], segment: SegmentInput) -> SegmentResult:
    """Suspensions first, then failures, else completed with every value."""
    kinds = {effect_id: type(answer) for effect_id, answer in answers.items()}
    open_ids = [effect_id for effect_id, kind in kinds.items() if kind in (Pending, Uncertain)]
    if open_ids:
        status = "uncertain" if Uncertain in kinds.values() else "waiting"
        return SegmentResult(status=status, effect_ids=open_ids)  # type: ignore[arg-type]
    state = {"status": "completed", "transcript": []}
    after = list(segment.transcript)
    for answer in answers.values():
        if isinstance(answer, AbortedEffect):
            return SegmentResult("cancelled", {**state, "status": "cancelled"}, after)
        if isinstance(answer, HostError):
            error = {"code": answer.code or "host", "message": answer.message}
            return SegmentResult("failed", {**state, "status": "failed"}, after, error=error)
    values = {effect_id: answer.outcome["value"] for effect_id, answer in answers.items()}  # type: ignore[union-attr]
    return SegmentResult("completed", state, after, output=values)


# Effects and leases


def effect(effect_id: str, kind: str = "tool", **members: Any) -> EffectRequest:
    """An effect as an engine asks for it."""
    document: dict[str, Any] = {
        "effectId": effect_id,
        "sessionId": "s1",
        "turnId": "t1",
        "agentId": "a1",
        "manifestHash": "mh",
        "kind": kind,
        "context": {},
        **members,
    }
    return EffectRequest(effect_id, kind, document, request_hash(document))  # type: ignore[arg-type]


def lease(run_id: str = "r1", session_id: str = "s1", **changes: Any) -> dict[str, Any]:
    """A lease's answer. `grant`, `options`, `routing` add members there; others to the input."""
    manifest = {"manifestSchemaVersion": 4, "id": "a1", "capabilities": []}
    grant = {"runId": run_id, "sessionId": session_id, "turnId": "t1", "epoch": 1, **changes.pop("grant", {})}
    options = {"fixtureModel": False, **changes.pop("options", {})}
    routing = {"rootManifest": manifest, "pluginRoots": {}, **changes.pop("routing", {})}
    start: dict[str, Any] = {
        "type": "turn.start",
        "engine": "agent",
        "manifest": manifest,
        "checkpoint": {"turnId": "t1", "segment": 0},
        "sessionTools": [],
        "outcomes": [],
        "transcript": {"cursor": -1},
        "options": options,
        "routing": routing,
        **changes,
    }
    return {"run": grant, "input": start}


# Everything together


@dataclass
class Setting:
    """A gateway over a core in memory."""

    core: Core
    fake: FakeExecutors
    host: RunHost
    link: Link
    connected: list[float] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    engines: list[PlannedEngine] = field(default_factory=list)
    segments: list[SegmentInput] = field(default_factory=list)
    plan: Callable[[SegmentInput], Plan] | None = None

    async def leased(self, number: int = 1, **answer: Any) -> CoreEnd:
        """Answers the outstanding lease of the n-th connection."""
        end = await self.core.connection(number)
        end.answer(await end.expect("lease"), lease(**answer))
        return end

    async def greeted(self, number: int = 1) -> CoreEnd:
        """The n-th connection after its hello."""
        end = await self.core.connection(number)
        async with asyncio.timeout(BOUND_S):
            while len(self.connected) < number:
                self.news.clear()
                await self.news.wait()
        return end


@contextlib.asynccontextmanager
async def gateway(
    plan: Callable[[SegmentInput], Plan] | None = None,
    *,
    make_engine: Callable[[str, SegmentInput], Any] | None = None,
    timing: Timing | None = None,
    services: Any = None,
    chance: Callable[[], float] = lambda: 0.5,
    backends: tuple[str, ...] | None = None,
    workspaces: Any = None,
) -> Any:
    """A running gateway; stopped at the end. `plan` makes the plan of each segment."""
    core, fake = Core(), FakeExecutors()
    fake.workspaces = workspaces
    setting: Setting

    def planned(kind: str, segment: SegmentInput) -> PlannedEngine:
        assert setting.plan is not None
        engine = PlannedEngine(setting.plan(segment))
        setting.engines.append(engine)
        setting.segments.append(segment)
        return engine

    async def credentials() -> str:
        return TOKEN

    def connected() -> None:
        setting.connected.append(asyncio.get_running_loop().time())
        setting.news.set()

    host = RunHost(fake.all(), make_engine or planned, timing or Timing())
    link = Link(
        URL,
        host,
        credentials=credentials,
        dial=core,
        services=services or AlwaysReady(),
        introduction=Introduction("harness", "0.17.0-beta+whippletree.0", backends),
        on_connected=connected,
        chance=chance,
    )
    setting = Setting(core, fake, host, link, plan=plan)
    serving = asyncio.create_task(link.run())
    try:
        yield setting
    finally:
        await link.stop(1.0)
        async with asyncio.timeout(BOUND_S):
            await serving
        await host.tasks.close(1.0)


async def settle() -> None:
    """Lets everything happen that can happen without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.contextmanager
def logs() -> Iterator[list[Mapping[str, Any]]]:
    """The log entries of the block: `event`, `log_level` and the fields."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def events_of(captured: list[Mapping[str, Any]]) -> list[str]:
    """The names of the events, in order."""
    return [entry["event"] for entry in captured]
