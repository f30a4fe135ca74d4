"""How many effects a second the engine alone gets through: one segment of many steps with parallel tools.

The segment starts from a transcript of `--entries` entries of `--bytes` each, takes `--steps` steps of
`--tools` parallel tool calls, and ends with an answer. Outcomes are there at once; nothing is sent. Timed is
the processor time of the whole segment, its start included.

Figures: `effects_per_s`, `segment_ms`, and of it `hash_ms`, the hash passes over the model calls' prompts,
which by their nature go over the whole conversation. Each is the median of the rounds.
Baseline: `hash_ms`. Ratio: `segment_over_hash`.
"""

from __future__ import annotations

import argparse
import gc
import time

from bench.engine_history import HashClock, hashing_timed, history, step
from bench.engine_player import Player, checkpoint
from bench.result import BenchResult
from bench.turns import p50
from gateway.engine.definitions import DefinitionCache


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--steps", type=int, default=50, help="steps of the segment (default %(default)s)")
    parser.add_argument("--tools", type=int, default=4, help="tool calls of a step (default %(default)s)")
    parser.add_argument(
        "--entries", type=int, default=200, help="entries of the transcript before (default %(default)s)"
    )
    parser.add_argument("--bytes", type=int, default=1024, help="size of an entry (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="how often it is done (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    definitions = DefinitionCache()
    state, entries = history(flags.entries, flags.bytes, definitions)
    segments: list[float] = []
    hashes: list[float] = []
    with hashing_timed() as clock:
        for number in range(flags.rounds):
            player = Player(checkpoint(f"t_{number}", "go", state), entries, definitions=definitions)
            spent, hashed = _segment(player, flags, clock)
            segments.append(spent)
            hashes.append(hashed)
    effects = flags.steps * (flags.tools + 1) + 1
    segment_ms, hash_ms = p50(segments), p50(hashes)
    figures = {"effects_per_s": effects / segment_ms * 1000, "segment_ms": segment_ms, "hash_ms": hash_ms}
    return BenchResult(
        "engine_segment", figures, {"hash_ms": hash_ms}, {"segment_over_hash": segment_ms / hash_ms}
    )


def _segment(player: Player, flags: argparse.Namespace, clock: HashClock) -> tuple[float, float]:
    """Milliseconds of the whole segment, and of its hash passes."""
    gc.collect()
    clock.take()
    began = time.thread_time()
    player.start()
    for number in range(flags.steps):
        step(player, number, flags.tools, flags.bytes)
    (model,) = player.waiting
    player.answer(model, "done")
    spent = (time.thread_time() - began) * 1000
    assert player.ended is not None
    assert player.ended.status == "completed"
    return spent, clock.take()
