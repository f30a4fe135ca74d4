"""Variants of one piece of work, timed call by call in turn, so that all of them see the same machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping

from bench.result import percentile

Variant = Callable[[], Awaitable[object]]
Samples = dict[str, list[float]]
"""Milliseconds by variant."""


async def take_turns(variants: Mapping[str, Variant], rounds: int, warm_up: int) -> Samples:
    """Calls each variant once per round, each round beginning with another one."""
    names = list(variants)
    samples: Samples = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        if number == 0:
            gc.collect()
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            call = variants[name]
            began = time.perf_counter()
            await call()
            took = (time.perf_counter() - began) * 1000
            if number >= 0:
                samples[name].append(took)
    return samples


def p50(samples: list[float]) -> float:
    """The median."""
    return percentile(samples, 0.5)


def p99(samples: list[float]) -> float:
    """The 99th percentile."""
    return percentile(samples, 0.99)
