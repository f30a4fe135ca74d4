"""What the n-th model call of a session costs as its transcript grows.

An engine is driven through one long turn: each step appends an answer that calls a tool, and the tool's
result, one entry of 1 KiB each, and then asks for the next model call, which is written for the wire as the
gateway writes it. All of it happens step by step in the one turn, in CPU time, so that each part finds the
processor's caches as the parts before it left them: after megabytes were hashed and copied.

Figures, at 10 and at the last entry, each the median of the calls around that length:
  call_ms_*     the engine, from the tool's result to the next model call, without the hash pass
  hash_ms_*     the hash pass: the request's hash goes over the whole conversation by its nature
  message_ms_*  writing the call into its gRPC message, which holds the whole conversation by its nature:
                one pass over the pieces that the engine keeps, and one copy of their bytes
  whole_ms_*    all three
  message_kib_* the size of that message
  turn_ms_*     a whole turn that finds so many entries (its start, one model call, its end), without the
                hash pass and without a message
Baseline: `hash_ms_*`, and `copy_ms_*`, copying the bytes of a finished message once.
Ratio: `call_2000_over_10`, and the others alike (named by the entries that were asked for), and
`message_over_copy_2000`.
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
_COPIES: Final = 10
_HASH: Final = "hash_pieces"
_PARTS: Final = ("call_ms", "hash_ms", "message_ms", "whole_ms", "message_kib", "turn_ms", "copy_ms")
_BASELINE: Final = ("hash_ms", "copy_ms")


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
    parts: dict[str, _Part] = {name: _Part() for name in _PARTS}
    with _hash_timed() as clock:
        for _ in range(flags.rounds):
            _one_turn(last, flags.bytes, clock, parts)
        for length in (FIRST, last):
            _whole_turns(length, flags.bytes, clock, parts["turn_ms"])
    found = {f"{name}_{length}": part.at(length) for name, part in parts.items() for length in (FIRST, last)}
    timed = [name for name in _PARTS if name.endswith("_ms") and name != "copy_ms"]
    ratio = {
        f"{name.removesuffix('_ms')}_{last}_over_{FIRST}": found[f"{name}_{last}"] / found[f"{name}_{FIRST}"]
        for name in timed
    }
    ratio[f"message_over_copy_{last}"] = found[f"message_ms_{last}"] / found[f"copy_ms_{last}"]
    baseline = {
        f"{name}_{length}": found[f"{name}_{length}"] for name in _BASELINE for length in (FIRST, last)
    }
    figures = {name: value for name, value in found.items() if not name.startswith("copy_ms")}
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
    rest = model_executor_pb2.ModelCallRequest(invocation_id="inv_bench")
    finished: list[tuple[int, bytes]] = []
    gc.collect()
    for length in range(1, last + 2, 2):
        clock.take()
        began = time.thread_time()
        _step(player, length, size)
        asked = time.thread_time()
        message = _message(player, rest)
        written = time.thread_time()
        hashed = clock.take()
        if length + 3 in (FIRST, last) or length + 2 in (FIRST, last):
            finished.append((length + 2, message))
        spent = {
            "call_ms": (asked - began) * 1000 - hashed,
            "hash_ms": hashed,
            "message_ms": (written - asked) * 1000,
            "whole_ms": (written - began) * 1000,
            "message_kib": len(message) / 1024,
        }
        for name, value in spent.items():
            parts[name].add(length + 2, value)
    # Afterwards, or the copies would cost the engine its caches once more.
    for length, message in finished:
        for _ in range(_COPIES):
            parts["copy_ms"].add(length, _copying(message))


def _message(player: Player, rest: model_executor_pb2.ModelCallRequest) -> bytes:
    """The model call that the engine waits for, as it crosses to the model-executor."""
    (model,) = player.waiting
    call = player.waiting[model].model_call
    assert call is not None
    return WrittenCall(rest, call.parts).SerializeToString()


def _copying(message: bytes) -> float:
    """Milliseconds that copying a message once takes, into memory of its own."""
    view = memoryview(message)
    began = time.thread_time()
    bytes(view)
    return (time.thread_time() - began) * 1000


_CANDIDATE_ROOM: Final = 320
_RESULT_ROOM: Final = 300
"""About what an entry has around its text."""


def _step(player: Player, length: int, size: int) -> None:
    """From the answer of a model call to the next one: two entries."""
    (model,) = player.waiting
    player.answer(model, asks(f"c{length}", filler="a" * (size - _CANDIDATE_ROOM)))
    (tool,) = player.waiting
    player.answer(tool, {"kind": "completed", "output": "r" * (size - _RESULT_ROOM)})


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
