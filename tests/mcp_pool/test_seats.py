"""The seats of connections: limits hold, also while connections close, and the longest idle one makes room."""

from __future__ import annotations

import asyncio

import pytest

from services.mcp_pool.failures import OverLimit
from services.mcp_pool.seats import Seats
from tests.mcp_pool.support import BOUND

ME, YOU = ("t", "me"), ("t", "you")


class Idle:
    """Idle connections that can be closed for their seats; the oldest first."""

    def __init__(self, seats, *held):
        self.seats = seats
        self.held = list(held)
        self.asked = []

    def evict(self, owner):
        self.asked.append(owner)
        for seat in self.held:
            if owner in (None, seat.owner):
                self.held.remove(seat)
                self.seats.closing(seat)
                return True
        return False


def nobody(_):
    return False


async def take(seats, owner=ME, evict=nobody):
    async with asyncio.timeout(BOUND):
        return await seats.take(owner, evict)


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_full_pool_is_refused_at_once_and_the_text_names_setting_and_value():
    seats = Seats(2, 5)
    for _ in range(2):
        await take(seats)
    with pytest.raises(OverLimit, match=r"WHIPPLETREE_MCP_MAX_CONNECTIONS=2\b"):
        await take(seats, YOU)
    assert len(seats) == 2


async def test_a_full_session_is_refused_while_others_have_room():
    seats = Seats(10, 1)
    await take(seats)
    with pytest.raises(OverLimit, match="WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION=1"):
        await take(seats)
    await take(seats, YOU)


async def test_a_seat_that_is_given_back_is_free():
    seats = Seats(1, 1)
    seats.give_back(await take(seats))
    assert len(seats) == 0
    await take(seats, YOU)


async def test_an_idle_connection_makes_room_once_it_is_closed():
    seats = Seats(1, 1)
    idle = Idle(seats, old := await take(seats))
    waiting = asyncio.create_task(take(seats, YOU, idle.evict))
    await settled()
    assert not waiting.done()
    seats.give_back(old)
    assert (await waiting).owner == YOU
    assert len(seats) == 1


async def test_a_session_over_its_limit_closes_its_own_and_no_others():
    seats = Seats(10, 1)
    idle = Idle(seats, await take(seats, YOU), mine := await take(seats))
    waiting = asyncio.create_task(take(seats, ME, idle.evict))
    await settled()
    assert idle.asked == [ME]
    assert [seat.owner for seat in idle.held] == [YOU]
    seats.give_back(mine)
    await waiting


async def test_nothing_is_closed_for_a_seat_that_is_about_to_be_free():
    seats = Seats(2, 2)
    idle = Idle(seats, await take(seats), leaving := await take(seats))
    idle.held.remove(leaving)
    seats.closing(leaving)
    waiting = asyncio.create_task(take(seats, YOU, idle.evict))
    await settled()
    assert idle.asked == []
    seats.give_back(leaving)
    await waiting


async def test_each_of_two_who_come_gets_a_seat_of_its_own():
    seats = Seats(2, 2)
    idle = Idle(seats, first := await take(seats), second := await take(seats))
    waiting = [asyncio.create_task(take(seats, YOU, idle.evict)) for _ in range(2)]
    await settled()
    assert idle.held == []
    with pytest.raises(OverLimit):
        await take(seats, ("t", "third"), idle.evict)
    seats.give_back(first)
    await settled()
    assert [task.done() for task in waiting] == [True, False]
    seats.give_back(second)
    await waiting[1]
    assert len(seats) == 2


async def test_who_stops_waiting_leaves_the_seat_to_the_next():
    seats = Seats(1, 1)
    idle = Idle(seats, old := await take(seats))
    waiting = asyncio.create_task(take(seats, YOU, idle.evict))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    next_one = asyncio.create_task(take(seats, YOU))
    await settled()
    seats.give_back(old)
    await next_one
    assert len(seats) == 1
