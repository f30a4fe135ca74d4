"""Calls of one connection beyond the limit wait in order and hear where they stand."""

from __future__ import annotations

import asyncio

import pytest

from services.common.effect_run import CANCEL, SHUTDOWN, AbortLatch
from services.mcp_pool import aborts
from services.mcp_pool.failures import RequestAborted
from services.mcp_pool.turns import CallTurns
from tests.mcp_pool.support import BOUND


class Call:
    """A call that runs until it is told to end."""

    def __init__(self, turns, key="k"):
        self.abort = AbortLatch()
        self.done = asyncio.Event()
        self.runs = False
        self.heard = []
        self.task = asyncio.create_task(self.run(turns, key))

    async def run(self, turns, key):
        async with (
            asyncio.timeout(BOUND),
            turns.turn(key, self.abort, aborts.STDIO, self.heard.append),
        ):
            self.runs = True
            await self.done.wait()

    async def end(self):
        self.done.set()
        await self.task


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def calls(turns, count, key="k"):
    made = [Call(turns, key) for _ in range(count)]
    await settled()
    return made


async def test_calls_over_the_limit_wait_in_order_and_hear_their_place():
    turns = CallTurns(2)
    first, second, third, fourth = await calls(turns, 4)
    assert [call.runs for call in (first, second, third, fourth)] == [True, True, False, False]
    assert (first.heard, third.heard, fourth.heard) == ([], [2], [3])
    await second.end()
    await settled()
    assert (third.runs, fourth.runs) == (True, False)
    assert fourth.heard == [3, 2]
    for call in (first, third, fourth):
        await call.end()
    assert len(turns) == 0


async def test_keys_do_not_wait_for_each_other():
    turns = CallTurns(1)
    (one,) = await calls(turns, 1, "a")
    (other,) = await calls(turns, 1, "b")
    assert one.runs
    assert other.runs
    await one.end()
    await other.end()


async def test_a_cancel_ends_the_wait_and_another_abort_does_not():
    turns = CallTurns(1)
    first, second, third = await calls(turns, 3)
    second.abort.set(CANCEL)
    third.abort.set(SHUTDOWN)
    with pytest.raises(RequestAborted):
        await second.task
    assert third.heard == [2, 1]
    await first.end()
    await settled()
    assert third.runs
    await third.end()
    assert len(turns) == 0


@pytest.mark.parametrize("turn_came", [False, True], ids=["while it waits", "as its turn comes"])
async def test_a_waiting_call_that_is_cancelled_takes_no_turn_along(turn_came):
    turns = CallTurns(1)
    first, second, third = await calls(turns, 3)
    if turn_came:
        first.done.set()
        await first.task
    second.task.cancel()
    await settled()
    assert second.task.cancelled()
    assert third.runs is turn_came
    await first.end()
    await settled()
    assert third.runs
    await third.end()
    assert len(turns) == 0
