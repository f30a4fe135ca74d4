"""The pool's own rules, with connections that are not there and a clock that is turned by hand."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from services.common.effect_run import CANCEL, AbortLatch
from services.mcp_pool.connection import Connecting
from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.failures import ConnectionLost, McpFailure, OverLimit, RequestAborted
from services.mcp_pool.limits import Limits
from services.mcp_pool.pool import ConnectionPool
from services.mcp_pool.session import PoolKey
from services.mcp_pool.slots import OpeningSlots
from tests.mcp_pool.support import BOUND

SERVER = DeclaredServer(ServerName(None, "cap", "srv"), {"type": "stdio"})
KEY = PoolKey("acme", "s1", SERVER.name)


class FakeConnection:
    """Opens when its gate is open; counts how often it was closed, and by which task."""

    def __init__(self, key, on_end, closing):
        self.key = key
        self.on_end = on_end
        self.closing = closing
        self.there = False
        self.usable = False
        self.closed = 0
        self.closed_by = None
        self.opened_by = None

    async def close(self):
        self.closed += 1
        self.closed_by = asyncio.current_task()
        self.usable = False
        await self.closing.wait()
        self.there = False

    def die(self):
        self.usable = False
        self.on_end(self)


class FakeConnector:
    def __init__(self):
        self.made = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closing = asyncio.Event()
        self.closing.set()
        self.failure = None
        self.dead_on_arrival = False

    def connect(self, key, server, on_end):
        connection = FakeConnection(key, on_end, self.closing)
        self.made.append(connection)

        async def opening():
            connection.opened_by = asyncio.current_task()
            connection.there = True
            await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            connection.usable = not self.dead_on_arrival

        return Connecting(connection, opening)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def connector():
    return FakeConnector()


@pytest.fixture
async def pool(connector, clock):
    pool = ConnectionPool(connector, Limits(), clock)
    yield pool
    async with asyncio.timeout(BOUND):
        await pool.close()
    assert pool.connections == 0
    assert all(connection.closed for connection in connector.made if connection.usable)


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def use(pool, key=KEY, abort=None, until=None):
    async with asyncio.timeout(BOUND), pool.lease(key, SERVER, abort or AbortLatch()) as lease:
        connection = await lease.connection()
        if until is not None:
            await until.wait()
        return connection


@pytest.mark.spec("mcp-pool:11.39")
async def test_calls_on_a_cold_key_share_one_opening(pool, connector):
    connector.gate.clear()
    calls = [asyncio.create_task(use(pool)) for _ in range(3)]
    await settled()
    connector.gate.set()
    first, *others = await asyncio.gather(*calls)
    assert all(other is first for other in others)
    assert len(connector.made) == 1


@pytest.mark.spec("mcp-pool:11.39")
async def test_the_sweep_leaves_a_connection_with_a_call_alone(pool, connector, clock):
    done = asyncio.Event()
    call = asyncio.create_task(use(pool, until=done))
    await settled()
    clock.now += 10_000
    assert pool.sweep() == 0
    done.set()
    await call
    assert pool.sweep() == 0
    clock.now += 900
    assert pool.sweep() == 1


@pytest.mark.spec("mcp-pool:11.40")
async def test_fifteen_idle_minutes_close_a_connection_and_a_millisecond_less_does_not(
    pool, connector, clock
):
    connection = await use(pool)
    clock.now += 900 - 0.001
    assert pool.sweep() == 0
    clock.now += 0.001
    assert pool.sweep() == 1
    await settled()
    assert connection.closed == 1
    assert len(pool) == 0


async def test_a_touch_counts_as_use(pool, connector, clock):
    await use(pool)
    clock.now += 800
    with pool.preparation() as preparation:
        assert preparation.touch(KEY)
        assert not preparation.touch(KEY._replace(session_id="other"))
    clock.now += 800
    assert pool.sweep() == 0


@pytest.mark.spec("mcp-pool:11.44")
async def test_a_connection_is_opened_by_one_task_and_closed_by_another(pool, connector, clock):
    connection = await use(pool)
    clock.now += 1000
    pool.sweep()
    await settled()
    assert connection.closed_by not in (None, connection.opened_by, asyncio.current_task())


async def test_connections_are_shared_across_nothing(pool, connector):
    other_name = ServerName("child", "cap", "srv")
    keys = [
        KEY,
        KEY._replace(tenant_id="other"),
        KEY._replace(session_id="s2"),
        KEY._replace(name=other_name),
        KEY._replace(name=ServerName(None, "cap2", "srv")),
    ]
    assert len({id(await use(pool, key)) for key in keys}) == len(keys)


async def test_a_connection_that_ends_leaves_the_pool_at_once(pool, connector):
    first = await use(pool)
    first.die()
    assert len(pool) == 0
    await settled()
    assert first.closed == 1
    assert await use(pool) is not first


async def test_a_connection_that_ends_during_a_call_is_closed_after_it(pool, connector):
    done = asyncio.Event()
    call = asyncio.create_task(use(pool, until=done))
    await settled()
    (connection,) = connector.made
    connection.die()
    await settled()
    assert connection.closed == 0
    assert pool.connections == 1
    done.set()
    await call
    await settled()
    assert connection.closed == 1


async def test_a_connection_opened_beside_a_live_one_is_closed_and_the_old_one_kept(pool, connector):
    old = await use(pool)
    new = await pool.open(KEY, SERVER)
    assert pool.put(KEY, new)
    await settled()
    assert (old.closed, new.closed) == (0, 1)
    assert await use(pool) is old


async def test_a_failed_opening_reaches_every_call_and_the_next_one_tries_again(pool, connector):
    connector.gate.clear()
    connector.failure = McpFailure("no")
    calls = [asyncio.create_task(use(pool)) for _ in range(2)]
    await settled()
    connector.gate.set()
    for call in calls:
        with pytest.raises(McpFailure, match="no"):
            await call
    assert connector.made[0].closed == 1
    connector.failure = None
    await use(pool)


async def test_an_opening_that_takes_too_long_fails_and_is_closed(connector):
    connector.gate.clear()
    pool = ConnectionPool(connector, Limits(server=0.05))
    with pytest.raises(McpFailure, match="not open within"):
        await use(pool)
    await settled()
    assert connector.made[0].closed == 1
    await pool.close()


async def test_a_server_that_ends_as_soon_as_it_is_open_does_not_loop(pool, connector):
    connector.dead_on_arrival = True
    with pytest.raises(ConnectionLost):
        await use(pool)
    assert len(connector.made) == 1


async def test_a_cancel_ends_the_wait_for_an_opening_that_goes_on(pool, connector):
    connector.gate.clear()
    abort = AbortLatch()
    call = asyncio.create_task(use(pool, abort=abort))
    await settled()
    abort.set(CANCEL)
    with pytest.raises(RequestAborted):
        await call
    connector.gate.set()
    await settled()
    assert len(pool) == 1
    assert len(connector.made) == 1


async def test_a_cancelled_caller_does_not_take_the_others_along(pool, connector):
    connector.gate.clear()
    calls = [asyncio.create_task(use(pool)) for _ in range(2)]
    await settled()
    calls[0].cancel()
    await settled()
    connector.gate.set()
    await calls[1]
    assert calls[0].cancelled()


async def test_closing_a_session_ends_its_connections_after_their_calls_and_no_others(pool, connector):
    done = asyncio.Event()
    busy = asyncio.create_task(use(pool, until=done))
    await settled()
    other = await use(pool, KEY._replace(session_id="s2"))
    closing = asyncio.create_task(pool.close_session("acme", "s1"))
    await settled()
    assert not closing.done()
    assert connector.made[0].closed == 0
    done.set()
    await busy
    assert await closing == 1
    assert connector.made[0].closed == 1
    assert other.closed == 0
    assert await pool.close_session("acme", "s1") == 0


async def test_closing_a_session_waits_for_its_openings(pool, connector):
    connector.gate.clear()
    call = asyncio.create_task(use(pool))
    await settled()
    closing = asyncio.create_task(pool.close_session("acme", "s1"))
    await settled()
    connector.gate.set()
    await asyncio.gather(call, closing)
    assert len(pool) == 0


async def test_closing_the_pool_ends_openings_and_refuses_new_ones(connector):
    pool = ConnectionPool(connector, Limits())
    connector.gate.clear()
    call = asyncio.create_task(use(pool))
    await settled()
    await pool.close()
    with pytest.raises(McpFailure, match="shutting down"):
        await call
    assert connector.made[0].closed == 1
    with pytest.raises(McpFailure, match="shutting down"):
        await pool.open(KEY, SERVER)
    late = FakeConnection(KEY, lambda _: None, connector.closing)
    late.usable = True
    assert not pool.put(KEY, late)
    await settled()
    assert late.closed == 1


async def test_sweeping_goes_on_by_itself_until_the_pool_is_closed(connector, clock):
    pool = ConnectionPool(connector, dataclasses.replace(Limits(), sweep=0.001), clock)
    pool.start_sweeping()
    connection = await use(pool)
    clock.now += 1000
    async with asyncio.timeout(BOUND):
        while not connection.closed:  # noqa: ASYNC110 - the sweep tells nobody
            await asyncio.sleep(0.001)
    await pool.close()


async def test_at_most_eight_open_at_a_time(pool, connector):
    connector.gate.clear()
    calls = [asyncio.create_task(use(pool, KEY._replace(session_id=f"s{n}"))) for n in range(20)]
    await settled()
    begun = [connection for connection in connector.made if connection.opened_by is not None]
    assert len(begun) == 8
    connector.gate.set()
    await asyncio.gather(*calls)


async def test_an_opening_that_lasts_gives_its_slot_to_the_next():
    slots = OpeningSlots(1, hold=0.01)
    async with asyncio.timeout(BOUND), slots.slot(), slots.slot():
        pass
    async with asyncio.timeout(BOUND), slots.slot():
        pass


# -- limits


def key_of(session, server="srv"):
    return KEY._replace(session_id=session, name=ServerName(None, "cap", server))


@pytest.fixture
async def small(connector, clock):
    pool = ConnectionPool(connector, Limits(connections=2, per_session=2), clock)
    yield pool
    connector.closing.set()
    async with asyncio.timeout(BOUND):
        await pool.close()
    assert pool.seats == 0


async def test_over_the_limit_the_longest_idle_connection_is_closed_first(small, connector, clock):
    oldest = await use(small, key_of("s1"))
    clock.now += 1
    newer = await use(small, key_of("s2"))
    await use(small, key_of("s3"))
    assert (oldest.closed, newer.closed) == (1, 0)
    assert len(small) == 2


async def test_a_new_connection_waits_until_the_one_that_makes_room_is_gone(small, connector):
    await use(small, key_of("s1"))
    await use(small, key_of("s2"))
    connector.closing.clear()
    third = asyncio.create_task(use(small, key_of("s3")))
    await settled()
    assert [connection.there for connection in connector.made] == [True, True, False]
    connector.closing.set()
    await third


async def test_with_every_connection_in_use_a_call_is_refused_before_anything_starts(small, connector):
    done = asyncio.Event()
    busy = [asyncio.create_task(use(small, key_of(name), until=done)) for name in ("s1", "s2")]
    await settled()
    with pytest.raises(OverLimit, match="WHIPPLETREE_MCP_MAX_CONNECTIONS=2"):
        await use(small, key_of("s3"))
    assert connector.made[2].opened_by is None
    done.set()
    await asyncio.gather(*busy)
    await use(small, key_of("s3"))


async def test_a_preparation_never_closes_what_it_opened_itself(small, connector):
    with small.preparation() as preparation:
        for name in ("a", "b"):
            preparation.put(key_of("s1", name), await small.open(key_of("s1", name), SERVER))
        with pytest.raises(OverLimit, match="PER_SESSION=2"):
            await small.open(key_of("s1", "c"), SERVER)
    small.put(key_of("s1", "c"), await small.open(key_of("s1", "c"), SERVER))
    assert connector.made[0].closed == 1


async def test_a_call_that_never_starts_gives_its_seat_back(small, connector):
    async with small.lease(KEY, SERVER, AbortLatch()):
        assert small.seats == 1
    await settled()
    assert small.seats == 0
    assert connector.made[0].opened_by is None


async def test_a_call_that_gives_up_while_it_waits_for_a_seat_leaves_it_to_others(small, connector):
    await use(small, key_of("s1"))
    await use(small, key_of("s2"))
    connector.closing.clear()
    third = asyncio.create_task(use(small, key_of("s3")))
    await settled()
    third.cancel()
    await settled()
    fourth = asyncio.create_task(use(small, key_of("s4")))
    await settled()
    connector.closing.set()
    await fourth
    assert third.cancelled()
    assert small.seats == 2


async def test_a_secured_call_keeps_its_connection_from_being_closed(small, connector, clock):
    first = await use(small, key_of("s1"))
    clock.now += 1
    second = await use(small, key_of("s2"))
    async with small.lease(key_of("s1"), SERVER, AbortLatch()) as lease:
        await use(small, key_of("s3"))
        assert await lease.connection() is first
    assert (first.closed, second.closed) == (0, 1)


async def test_a_connection_that_was_just_opened_is_not_closed_before_its_call_has_it(
    small, connector, monkeypatch
):
    """Somebody wants a seat in the moment between the end of the opening and the call's turn."""
    put, evicted = small.put, []

    def put_and_want_a_seat(key, connection):
        entry = put(key, connection)
        asyncio.get_running_loop().call_soon(lambda: evicted.append(small._evict(None)))
        return entry

    monkeypatch.setattr(small, "put", put_and_want_a_seat)
    connection = await use(small)
    assert evicted == [False]
    assert connection.closed == 0


async def test_an_opening_whose_calls_all_left_is_idle(small, connector):
    connector.gate.clear()
    abort = AbortLatch()
    call = asyncio.create_task(use(small, KEY, abort=abort))
    await settled()
    abort.set(CANCEL)
    with pytest.raises(RequestAborted):
        await call
    connector.gate.set()
    await settled()
    assert len(small) == 1
    await use(small, key_of("s2"))
    await use(small, key_of("s3"))
    assert connector.made[0].closed == 1
