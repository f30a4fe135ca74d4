"""How long a run takes that only replays what core has recorded.

A turn of model calls and tool calls is played once to get its outcomes. Then it is run again with all of
them in its lease: by the engine alone, and as a gateway runs it, from the text of the frame that brings the
lease to the text of the frame that reports the turn, over a socket in memory.

Figures: `engine_ms`, `gateway_ms` (medians), `outcomes`. Baseline: `parse_ms`, reading the lease's text
alone. Ratio: `gateway_over_engine`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from bench.engine_player import HASH, MANIFEST, SESSION, Player, asks, checkpoint
from bench.environment import run_on_uvloop
from bench.result import BenchResult
from bench.turns import p50
from gateway.attachment import Introduction
from gateway.engine.contract import Engine, RecordedOutcome, SegmentInput
from gateway.engine.definitions import DefinitionCache
from gateway.engine.factory import make_engine
from gateway.executors.contract import Executors
from gateway.fleet import AlwaysReady
from gateway.link import Link
from gateway.runs.host import RunHost
from gateway.websocket import SocketClosed
from protocol import frames, jsjson

TURN: Final = "t_replay"
BOUND_S: Final = 60.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--outcomes", type=int, default=200, help="recorded outcomes (default %(default)s)")
    parser.add_argument("--bytes", type=int, default=1024, help="size of an outcome (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="how often it is done (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    recorded = _record(max(flags.outcomes, 1), flags.bytes)
    engine = [_timed(lambda: _replay_in_engine(recorded)) for _ in range(flags.rounds)]
    text = jsjson.dumps(_lease(recorded))
    parse = [_timed(lambda: jsjson.parse(text)) for _ in range(flags.rounds)]
    gateway = run_on_uvloop(lambda: _replay_in_gateway(text, flags.rounds))
    figures = {"outcomes": float(len(recorded)), "engine_ms": p50(engine), "gateway_ms": p50(gateway)}
    ratio = {"gateway_over_engine": p50(gateway) / p50(engine)}
    return BenchResult("replay", figures, {"parse_ms": p50(parse)}, ratio)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _record(count: int, size: int) -> dict[str, RecordedOutcome]:
    """The outcomes of a turn of exactly so many effects (for two, of three): model calls and their tools."""
    recorded: dict[str, RecordedOutcome] = {}
    player = Player(checkpoint(TURN, "go"))
    player.start()

    def settle(effect_id: str, value: Any) -> None:
        effect = player.waiting[effect_id]
        recorded[effect_id] = RecordedOutcome(effect_id, effect.request_hash, {"value": value}, plain=True)
        player.answer(effect_id, value)

    filler = "x" * size
    while len(recorded) < count - 1:
        # Each round is a model call and its tools; the last effect of all is the answer.
        tools = 2 if count - 1 - len(recorded) == 3 else 1
        (model,) = player.waiting
        settle(model, asks(*(f"c{len(recorded)}-{number}" for number in range(tools)), filler=filler))
        for tool in list(player.waiting):
            settle(tool, {"kind": "completed", "output": filler})
    (model,) = player.waiting
    settle(model, "done")
    assert player.ended is not None
    assert player.ended.status == "completed"
    return recorded


def _replay_in_engine(recorded: Mapping[str, RecordedOutcome]) -> None:
    player = Player(checkpoint(TURN, "go"), outcomes=recorded)
    player.start()
    assert player.ended is not None
    assert player.ended.status == "completed"


def _lease(recorded: Mapping[str, RecordedOutcome]) -> dict[str, Any]:
    """The answer to `lease` that brings them."""
    outcomes = [
        {"effectId": one.effect_id, "requestHash": one.request_hash, "outcome": dict(one.outcome)}
        for one in recorded.values()
    ]
    start = {
        "type": "turn.start",
        "engine": "agent",
        "manifest": MANIFEST,
        "checkpoint": {**checkpoint(TURN, "go"), "manifestHash": HASH},
        "sessionTools": [],
        "outcomes": outcomes,
        "transcript": {"cursor": -1},
        "options": {"fixtureModel": False, "holdMs": 0},
        "routing": {"rootManifest": MANIFEST, "pluginRoots": {}, "sandbox": {"ownerId": SESSION}},
    }
    grant = {"runId": "run_replay", "sessionId": SESSION, "turnId": TURN, "epoch": 1}
    return {"run": grant, "input": start}


async def _replay_in_gateway(lease: str, rounds: int) -> list[float]:
    """Milliseconds of each round."""
    core = _MemoryCore(lease, rounds)
    definitions = DefinitionCache()

    def make(kind: str, segment: SegmentInput) -> Engine:
        assert kind == "agent"
        return make_engine("agent", segment, definitions)

    async def credentials() -> str:
        return "bench"

    link = Link(
        "ws://bench",
        RunHost(_no_executors(), make),
        credentials=credentials,
        dial=core,
        services=AlwaysReady(),
        introduction=Introduction("bench", "1", None),
    )
    serving = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(BOUND_S):
            await core.done.wait()
            await link.stop(BOUND_S)
            await serving
    finally:
        serving.cancel()
    return core.spent


def _no_executors() -> Executors:
    """A replay asks none of them."""
    return Executors(model=cast(Any, None), tools=cast(Any, None), mcp=cast(Any, None), workspaces=None)


class _MemoryCore:
    """The other end of a gateway's socket: says hello, grants the same run again and again, takes reports.

    Dialling gives the object itself. `spent` has the milliseconds from each grant to its report.
    """

    def __init__(self, lease: str, rounds: int) -> None:
        self._lease = jsjson.RawJson(lease)
        self._rounds = rounds
        self._incoming: asyncio.Queue[str | None] = asyncio.Queue()
        self._granted_at = 0.0
        self._asking: frames.Request | None = None
        self._running = False
        self.spent: list[float] = []
        self.done = asyncio.Event()

    async def __call__(self, url: str, token: str) -> _MemoryCore:
        """Dials."""
        del url, token
        return self

    @property
    def last_heard(self) -> float:
        """It is never silent."""
        return asyncio.get_running_loop().time()

    async def receive(self) -> str:
        """The next frame."""
        text = await self._incoming.get()
        if text is None:
            raise SocketClosed(1000, "")
        return text

    def hand_over(self, receiver: Callable[[str], None]) -> None:
        """Everything comes by `receive`."""

    def try_send(self, texts: Sequence[str]) -> bool:
        """Takes what the gateway sends."""
        self._take(texts)
        return True

    async def send(self, texts: Sequence[str]) -> None:
        """Takes what the gateway sends."""
        self._take(texts)

    def _take(self, texts: Sequence[str]) -> None:
        arrived = time.perf_counter()
        for text in texts:
            frame = frames.decode_frame(text)
            if isinstance(frame, frames.Request):
                self._serve(frame, arrived)

    async def close(self, code: int, reason: str) -> None:
        """Closes."""
        del code, reason
        self._incoming.put_nowait(None)

    def cut(self) -> None:
        """Closes."""
        self._incoming.put_nowait(None)

    def _serve(self, request: frames.Request, arrived: float) -> None:
        if request.m == "hello":
            self._answer(request, _HELLO)
        elif request.m == "turn.completed":
            self.spent.append((arrived - self._granted_at) * 1000)
            self._answer(request, {})
            self._running = False
            if len(self.spent) == self._rounds:
                self.done.set()
        elif request.m == "lease":
            self._asking = request
        else:
            raise AssertionError(f"a replay asked for {request.m}")
        if self._asking is not None and not self._running and len(self.spent) < self._rounds:
            self._answer(self._asking, self._lease)
            self._asking, self._running = None, True
            self._granted_at = time.perf_counter()

    def _answer(self, request: frames.Request, result: Any) -> None:
        self._incoming.put_nowait(frames.encode_answer(request.id, result))


_HELLO: Final = {"api": 1, "tenantId": "bench", "sandbox": {"backend": None}, "renewEveryMs": 10_000}
