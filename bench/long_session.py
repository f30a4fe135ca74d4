"""What the n-th model call of a session costs as its transcript grows.

An engine is driven through one long turn: each step appends an answer that calls a tool, and the tool's
result, one entry of 1 KiB each, and then asks for the next model call. Timed is everything from the tool's
result to that request, in CPU time. The request's hash goes over the whole conversation by its nature and is
timed apart; so is, in another turn, writing the call into its gRPC message. Beside it, for every length, what
a whole turn costs that finds so many entries: its start, one model call and its end.

Figures, at 10 and at the last entry: `call_ms_*` without the hash pass, `hash_ms_*`, `message_ms_*`,
`turn_ms_*` without the hash pass. Each is the median of the calls around that length.
Ratio: `call_2000_over_10`, and the others alike (named by the entries that were asked for).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import model_executor_pb2

from bench.engine_player import Player, asks, checkpoint
from bench.result import BenchResult
from bench.turns import p50
from gateway.engine.agent import effects
from gateway.engine.definitions import DefinitionCache
from gateway.executors.written_call import WrittenCall
from protocol.transcript import Entry

FIRST: Final = 10
_NEAR: Final = 10
"""Calls on each side of a length that its median is taken of."""
_TURN_ROUNDS: Final = 15
_HASH: Final = "hash_pieces"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument(
        "--entries", type=int, default=2000, help="length of the transcript (default %(default)s)"
    )
    parser.add_argument("--bytes", type=int, default=1024, help="size of an entry (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often it is done (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    last = max(flags.entries, FIRST * 2)
    parts: dict[str, _Part] = {name: _Part() for name in ("call", "hash", "message", "turn")}
    with _hash_timed() as clock:
        for _ in range(flags.rounds):
            _one_turn(last, flags.bytes, clock, parts)
        _messages(last, flags.bytes, parts["message"])
        for length in (FIRST, last):
            _whole_turns(length, flags.bytes, clock, parts["turn"])
    figures = {
        f"{name}_ms_{length}": part.at(length) for name, part in parts.items() for length in (FIRST, last)
    }
    ratio = {
        f"{name}_{last}_over_{FIRST}": figures[f"{name}_ms_{last}"] / figures[f"{name}_ms_{FIRST}"]
        for name in parts
    }
    baseline = {f"hash_ms_{length}": figures[f"hash_ms_{length}"] for length in (FIRST, last)}
    return BenchResult("long_session", figures, baseline, ratio)


@dataclass(slots=True)
class _Part:
    """Milliseconds of one part of the work, by the transcript's length."""

    samples: dict[int, list[float]] = field(default_factory=dict)

    def add(self, length: int, milliseconds: float) -> None:
        """One sample."""
        self.samples.setdefault(length, []).append(milliseconds)

    def at(self, length: int) -> float:
        """The median of what was measured near a length, never beyond half of it."""
        near = min(_NEAR, length // 2)
        return p50([ms for at in range(length - near, length + near + 1) for ms in self.samples.get(at, ())])


class _Clock:
    """How long hash passes took since the last look."""

    def __init__(self) -> None:
        self.hashing = 0.0

    def take(self) -> float:
        """Milliseconds, and begins anew."""
        spent, self.hashing = self.hashing, 0.0
        return spent * 1000


@contextmanager
def _hash_timed() -> Iterator[_Clock]:
    """Times the engine's hash passes from inside."""
    clock, original = _Clock(), vars(effects)[_HASH]

    def timed(pieces: Iterable[bytes]) -> str:
        began = time.thread_time()
        try:
            hashed: str = original(pieces)
            return hashed
        finally:
            clock.hashing += time.thread_time() - began

    vars(effects)[_HASH] = timed
    try:
        yield clock
    finally:
        vars(effects)[_HASH] = original


def _one_turn(last: int, size: int, clock: _Clock, parts: dict[str, _Part]) -> None:
    player = Player(checkpoint("t_long", "go"))
    player.start()
    gc.collect()
    for length in range(1, last + 2, 2):
        clock.take()
        began = time.thread_time()
        _step(player, length, size)
        spent = (time.thread_time() - began) * 1000
        hashed = clock.take()
        parts["call"].add(length + 2, spent - hashed)
        parts["hash"].add(length + 2, hashed)


_CANDIDATE_ROOM: Final = 320
_RESULT_ROOM: Final = 300
"""About what an entry has around its text."""


def _step(player: Player, length: int, size: int) -> None:
    """From the answer of a model call to the next one: two entries."""
    (model,) = player.waiting
    player.answer(model, asks(f"c{length}", filler="a" * (size - _CANDIDATE_ROOM)))
    (tool,) = player.waiting
    player.answer(tool, {"kind": "completed", "output": "r" * (size - _RESULT_ROOM)})


def _messages(last: int, size: int, part: _Part) -> None:
    """In a turn of its own, as megabytes that are written leave nothing of the engine's in the caches."""
    player = Player(checkpoint("t_long", "go"))
    player.start()
    rest = model_executor_pb2.ModelCallRequest(invocation_id="inv_bench")
    for length in range(1, last + 2, 2):
        _step(player, length, size)
        if min(abs(length + 2 - at) for at in (FIRST, last)) > _NEAR:
            continue
        (model,) = player.waiting
        call = player.waiting[model].model_call
        assert call is not None
        began = time.thread_time()
        WrittenCall(rest, call.parts).SerializeToString()
        part.add(length + 2, (time.thread_time() - began) * 1000)


def _whole_turns(length: int, size: int, clock: _Clock, part: _Part) -> None:
    """Turns that find `length` entries, as a gateway that kept the transcript starts them."""
    definitions = DefinitionCache()
    state, entries = _history(length, size, definitions)
    for number in range(_TURN_ROUNDS):
        clock.take()
        began = time.thread_time()
        player = Player(checkpoint(f"t_{number}", "again", state), entries, definitions=definitions)
        player.start()
        (model,) = player.waiting
        player.answer(model, "done")
        assert player.ended is not None
        assert player.ended.status == "completed"
        part.add(length, (time.thread_time() - began) * 1000 - clock.take())


def _history(length: int, size: int, definitions: DefinitionCache) -> tuple[Any, list[Entry]]:
    """A completed session of about so many entries, three a turn."""
    state: Any = None
    entries: list[Entry] = []
    number = 0
    while len(entries) < length:
        player = Player(
            checkpoint(f"t_past_{number}", "q" * (size - 200), state), entries, definitions=definitions
        )
        player.start()
        (model,) = player.waiting
        player.answer(model, "a" * (size - 200))
        assert player.ended is not None
        state, entries = player.ended.state, list(player.ended.transcript or ())
        number += 1
    return state, entries
