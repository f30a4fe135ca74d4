"""Sessions for the engine's benchmarks: a history of entries of one size, and the time hashing takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from bench.engine_player import Player, asks, checkpoint
from gateway.engine.agent import effects
from gateway.engine.definitions import DefinitionCache
from protocol.transcript import Entry

_AROUND_MESSAGE: Final = 90
_AROUND_ANSWER: Final = 110
"""About what an entry has around its text, in bytes."""


def history(length: int, size: int, definitions: DefinitionCache) -> tuple[Mapping[str, Any], list[Entry]]:
    """The state and the transcript of a session of so many entries of so many bytes each.

    The entries have been read, as those of a session are that the gateway keeps between two turns.
    """
    player = Player(checkpoint("t_past", "go"), definitions=definitions)
    player.start()
    (model,) = player.waiting
    player.answer(model, "ok")
    assert player.ended is not None
    assert player.ended.state is not None
    entries = [_entry(number, size) for number in range(length)]
    warm = Player(checkpoint("t_warm", "go", player.ended.state), entries, definitions=definitions)
    warm.start()
    return player.ended.state, entries


def _entry(number: int, size: int) -> Entry:
    turn_id = f"turn_{number // 2}"
    if number % 2 == 0:
        event = {"kind": "user-message", "text": "q" * (size - _AROUND_MESSAGE)}
        return Entry.from_value({"kind": "input", "turnId": turn_id, "event": event}, plain=True)
    block = {"type": "text", "text": "a" * (size - _AROUND_ANSWER)}
    entry = {
        "kind": "candidate",
        "turnId": turn_id,
        "stepId": f"step_{number}",
        "candidate": {"output": [block]},
    }
    return Entry.from_value(entry, plain=True)


def step(player: Player, number: int, calls: int, size: int) -> None:
    """One step: the model calls tools, and all of them answer. Both entries have about `size` bytes."""
    (model,) = player.waiting
    filler = "f" * max(0, size // calls - 80)
    player.answer(model, asks(*(f"c{number}_{at}" for at in range(calls)), filler=filler))
    for effect_id in list(player.waiting):
        player.answer(effect_id, {"kind": "completed", "output": filler})


class HashClock:
    """How long the engine's hash passes over model calls took since the last look."""

    def __init__(self) -> None:
        self._spent = 0.0

    def take(self) -> float:
        """Milliseconds, and begins anew."""
        spent, self._spent = self._spent, 0.0
        return spent * 1000

    def add(self, seconds: float) -> None:
        """A pass."""
        self._spent += seconds


@contextmanager
def hashing_timed() -> Iterator[HashClock]:
    """Times the hash passes from inside."""
    clock, original = HashClock(), vars(effects)["hash_pieces"]

    def timed(pieces: Iterable[bytes]) -> str:
        began = time.thread_time()
        try:
            hashed: str = original(pieces)
            return hashed
        finally:
            clock.add(time.thread_time() - began)

    vars(effects)["hash_pieces"] = timed
    try:
        yield clock
    finally:
        vars(effects)["hash_pieces"] = original
