"""What one step costs the engine as the transcript grows.

A turn starts from 10, 100, 1,000 and 5,000 entries of `--bytes` each and takes a few steps; a step is the
model's answer that calls a tool, the tool's outcome, and the next model call. Timed is the processor time of
a step without the two things that go over the whole conversation by their nature, which are shown apart:
hashing the next model call, and encoding it (joining its pieces to the text that is sent).

Figures, at each length: `step_ms_*`, `hash_ms_*`, `encode_ms_*`, and `start_ms_*`, the start of a turn up to
its first model call without hashing it. Each is the median of all steps at that length.
Baseline: `step_ms_10`. Ratio: `step_5000_over_10` and the lengths between.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field
from typing import Final

from bench.engine_history import HashClock, hashing_timed, history, step
from bench.engine_player import Player, checkpoint
from bench.result import BenchResult
from bench.turns import p50
from gateway.engine.definitions import DefinitionCache

LENGTHS: Final = (10, 100, 1000, 5000)
_STEPS: Final = 5
"""Steps of a turn: few, so that the transcript is still about as long at the last one."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--bytes", type=int, default=1024, help="size of an entry (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="turns at each length (default %(default)s)")


@dataclass(slots=True)
class _Costs:
    """Milliseconds at one length."""

    start: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    hash: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    costs = {length: _at(length, flags) for length in LENGTHS}
    figures = {
        f"{name}_ms_{length}": p50(getattr(at, name))
        for name in ("step", "hash", "encode", "start")
        for length, at in costs.items()
    }
    first, *others = LENGTHS
    base = figures[f"step_ms_{first}"]
    ratio = {f"step_{length}_over_{first}": figures[f"step_ms_{length}"] / base for length in others}
    return BenchResult("engine_growth", figures, {f"step_ms_{first}": base}, ratio)


def _at(length: int, flags: argparse.Namespace) -> _Costs:
    costs = _Costs()
    definitions = DefinitionCache()
    state, entries = history(length, flags.bytes, definitions)
    with hashing_timed() as clock:
        for number in range(flags.rounds):
            player = Player(checkpoint(f"t_{number}", "go", state), entries, definitions=definitions)
            _turn(player, flags.bytes, clock, costs)
    return costs


def _turn(player: Player, size: int, clock: HashClock, costs: _Costs) -> None:
    gc.collect()
    clock.take()
    began = time.thread_time()
    player.start()
    spent = (time.thread_time() - began) * 1000
    costs.start.append(spent - clock.take())
    for number in range(_STEPS):
        began = time.thread_time()
        step(player, number, 1, size)
        spent = (time.thread_time() - began) * 1000
        hashed = clock.take()
        costs.step.append(spent - hashed)
        costs.hash.append(hashed)
    costs.encode.append(_encode(player))


def _encode(player: Player) -> float:
    (effect,) = player.waiting.values()
    assert effect.model_call is not None
    began = time.thread_time()
    effect.model_call.text()
    return (time.thread_time() - began) * 1000
