from __future__ import annotations

import asyncio

from gateway.engine.contract import Abort, AbortKind
from gateway.executors.contract import AbortSignal
from gateway.runs import holds as holds_module
from gateway.runs.holds import Holds, Resolution
from tests.gateway.virtual_time import virtual_time

ONE, TWO = Resolution({"value": 1}), Resolution({"value": 2})


def waiting(holds: Holds, effect_id: str, seconds: float) -> list[Resolution | None]:
    got: list[Resolution | None] = []
    holds.wait(effect_id, seconds, got.append)
    return got


@virtual_time
async def test_a_waiter_gets_its_own_outcome_once():
    holds = Holds(AbortSignal())
    first, second = waiting(holds, "a", 10), waiting(holds, "b", 10)
    holds.resolved("a", ONE)
    holds.resolved("a", TWO)
    assert (first, second) == ([ONE], [])
    await asyncio.sleep(11)
    assert (first, second) == ([ONE], [None])


@virtual_time
async def test_a_buffered_outcome_is_taken_once():
    holds = Holds(AbortSignal())
    holds.resolved("a", ONE)
    assert waiting(holds, "a", 10) == [ONE]
    again = waiting(holds, "a", 10)
    assert again == []
    await asyncio.sleep(10)
    assert again == [None]


@virtual_time
async def test_an_abort_ends_every_wait_at_once():
    signal = AbortSignal()
    holds = Holds(signal)
    got = waiting(holds, "a", 10), waiting(holds, "b", 10)
    signal.set(Abort(AbortKind.CANCEL, "x"))
    assert got == ([None], [None])


@virtual_time
async def test_after_the_end_nothing_is_kept():
    holds = Holds(AbortSignal())
    got = waiting(holds, "a", 10)
    holds.resolved("b", ONE)
    holds.close()
    assert got == [None]
    holds.resolved("c", ONE)
    assert holds._buffered == {}


@virtual_time
async def test_the_buffer_has_a_limit(monkeypatch):
    monkeypatch.setattr(holds_module, "MAX_BUFFERED", 2)
    holds = Holds(AbortSignal())
    for name in "abc":
        holds.resolved(name, ONE)
    assert list(holds._buffered) == ["a", "b"]
