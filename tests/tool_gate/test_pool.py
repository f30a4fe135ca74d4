"""The gate's connections: shared openings, idle closing, ends and retirements."""

from __future__ import annotations

import asyncio

import pytest

from services.tool_gate.credentials import Access
from services.tool_gate.failures import Unreachable
from services.tool_gate.pool import ServerKey, UpstreamPool
from tests.tool_gate.fakes import FakeServers
from tests.tool_gate.support import BOUND, until

KEY = ServerKey("s", None, "cap", "far")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
async def servers():
    return FakeServers()


@pytest.fixture
async def clock():
    return Clock()


@pytest.fixture
async def pool(clock):
    made = UpstreamPool(idle_s=900.0, clock=clock)
    yield made
    async with asyncio.timeout(BOUND):
        await made.shut()
    assert made.connections == 0


def connecting(servers):
    async def connect(on_end):
        return servers.connect({}, Access({}), on_end)

    return connect


async def use(pool, servers, key=KEY):
    async with pool.lease(key, connecting(servers)) as upstream:
        return upstream


async def test_requests_that_find_no_connection_share_one_opening(pool, servers):
    servers.opening = asyncio.Event()
    waiting = [asyncio.create_task(use(pool, servers)) for _ in range(5)]
    await until(lambda: servers.made)
    servers.opening.set()
    assert {await task for task in waiting} == {servers.made[0]}
    assert (len(servers.made), servers.made[0].opened) == (1, 1)


async def test_a_request_that_is_given_up_leaves_the_opening_to_the_others(pool, servers):
    servers.opening = asyncio.Event()
    given_up = asyncio.create_task(use(pool, servers))
    await until(lambda: servers.made)
    given_up.cancel()
    await asyncio.wait({given_up})
    other = asyncio.create_task(use(pool, servers))
    servers.opening.set()
    assert await other is servers.made[0]


async def test_a_failed_opening_fails_all_who_wait_and_the_next_one_tries_again(pool, servers):
    servers.opening, servers.open_failure = asyncio.Event(), Unreachable("no")
    waiting = [asyncio.create_task(use(pool, servers)) for _ in range(2)]
    await until(lambda: servers.made)
    servers.opening.set()
    for task in waiting:
        with pytest.raises(Unreachable):
            await task
    await until(lambda: servers.made[0].closed)
    servers.open_failure = None
    assert await use(pool, servers) is servers.made[1]


async def test_a_connection_is_closed_after_exactly_fifteen_idle_minutes(pool, servers, clock):
    upstream = await use(pool, servers)
    clock.now = 899.999
    assert pool.sweep() == 0
    clock.now = 900.0
    assert pool.sweep() == 1
    await until(lambda: upstream.closed)


async def test_a_connection_with_a_request_is_not_swept(pool, servers, clock):
    async with pool.lease(KEY, connecting(servers)):
        clock.now = 10_000.0
        assert pool.sweep() == 0
    assert pool.sweep() == 0
    clock.now += 900.0
    assert pool.sweep() == 1


async def test_one_that_is_closed_during_a_request_is_closed_after_it(pool, servers):
    async with pool.lease(KEY, connecting(servers)) as upstream:
        pool.close(KEY)
        assert await use(pool, servers) is servers.made[1]
        await asyncio.sleep(0)
        assert not upstream.closed
    await until(lambda: upstream.closed)
    assert not servers.made[1].closed


async def test_one_that_ends_by_itself_is_replaced(pool, servers):
    first = await use(pool, servers)
    first.end()
    assert await use(pool, servers) is servers.made[1]
    await until(lambda: first.closed)


async def test_one_that_ends_as_soon_as_it_is_opened_is_not_opened_for_ever(pool, servers):
    async def connect(on_end):
        upstream = servers.connect({}, Access({}), on_end)
        upstream.usable = False
        return upstream

    with pytest.raises(Exception, match="ends as soon as it is opened"):
        async with pool.lease(KEY, connect):
            pass
    await until(lambda: all(upstream.closed for upstream in servers.made))


async def test_closing_what_is_not_there_changes_nothing(pool):
    pool.close(KEY)


async def test_a_shut_pool_closes_everything_and_opens_nothing(servers, clock):
    pool = UpstreamPool(idle_s=900.0, clock=clock)
    upstream = await use(pool, servers)
    servers.opening = asyncio.Event()
    opening = asyncio.create_task(use(pool, servers, ServerKey("t", None, "cap", "far")))
    await until(lambda: len(servers.made) == 2)
    await pool.shut()
    with pytest.raises(Unreachable, match="stopping"):
        await opening
    with pytest.raises(Unreachable, match="stopping"):
        await use(pool, servers)
    assert (upstream.closed, servers.made[1].closed, pool.connections) == (1, 1, 0)
