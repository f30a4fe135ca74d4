"""How long to wait before dialling core again (harness-api 1.5)."""

from __future__ import annotations

import random
from collections.abc import Callable

_MAX_DOUBLINGS = 32
"""Beyond this the ceiling is the maximum anyway; it only keeps the numbers small."""


class Backoff:
    """Waits that grow from `min_s` to at most `max_s` and start again after a connection that lasted.

    `chance` gives a number of [0, 1).
    """

    def __init__(self, min_s: float, max_s: float, chance: Callable[[], float] = random.random) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._chance = chance
        self._attempt = 0

    def next_wait_s(self, lasted_s: float) -> float:
        """The wait after an attempt that took `lasted_s` from the dial to its end."""
        if lasted_s > self._max_s:
            self._attempt = 0
        ceiling = min(self._max_s, self._min_s * 2.0 ** min(self._attempt, _MAX_DOUBLINGS))
        self._attempt += 1
        return self._min_s + self._chance() * max(0.0, ceiling - self._min_s)
