"""Whatever happens in whatever order, no connection is lost, shared too widely or closed under a call."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.common.effect_run import CANCEL, AbortLatch
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.failures import McpFailure, RequestAborted
from services.mcp_pool.limits import Limits
from services.mcp_pool.pool import ConnectionPool
from tests.mcp_pool.support import BOUND
from tests.mcp_pool.test_pool import KEY, SERVER, Clock, FakeConnector, settled

SESSIONS = ("s1", "s2")
SERVERS = ("a", "b", "c")
LIMITS = Limits(connections=4, per_session=2)

STEP = st.one_of(
    st.tuples(st.just("call"), st.tuples(st.sampled_from(SESSIONS), st.sampled_from(SERVERS))),
    st.tuples(st.sampled_from(["finish", "cancel", "die"]), st.integers(0, 3)),
    st.tuples(st.just("close session"), st.sampled_from(SESSIONS)),
    st.tuples(
        st.sampled_from(
            [
                "hold openings",
                "let openings go",
                "hold closings",
                "let closings go",
                "wait long",
                "fail",
                "heal",
            ]
        ),
        st.none(),
    ),
)


def key_of(session, server):
    return KEY._replace(session_id=session, name=ServerName(None, "cap", server))


class Call:
    """One call, and what it held while it ran."""

    def __init__(self, pool, session, server):
        self.done = asyncio.Event()
        self.abort = AbortLatch()
        self.connection = None
        self.closed_under_it = False
        self.task = asyncio.create_task(self.run(pool, key_of(session, server)))

    async def run(self, pool, key):
        try:
            async with pool.lease(key, SERVER, self.abort) as lease:
                self.connection = connection = await lease.connection()
                await self.done.wait()
                self.closed_under_it = bool(connection.closed)
        except (McpFailure, RequestAborted):
            pass


async def play(steps):
    connector, clock = FakeConnector(), Clock()
    pool = ConnectionPool(connector, LIMITS, clock)
    calls, closings = [], []
    for what, which in steps:
        if what == "call":
            calls.append(Call(pool, *which))
        elif what == "finish" and which < len(calls):
            calls[which].done.set()
        elif what == "cancel" and which < len(calls):
            calls[which].abort.set(CANCEL)
        elif what == "die" and which < len(connector.made) and connector.made[which].usable:
            connector.made[which].die()
        elif what == "close session":
            closings.append(asyncio.create_task(pool.close_session("acme", which)))
        elif what == "hold openings":
            connector.gate.clear()
        elif what == "let openings go":
            connector.gate.set()
        elif what == "hold closings":
            connector.closing.clear()
        elif what == "let closings go":
            connector.closing.set()
        elif what == "wait long":
            clock.now += 1000
            pool.sweep()
        elif what == "fail":
            connector.failure = McpFailure("no")
        elif what == "heal":
            connector.failure = None
        await settled()
        there = [connection for connection in connector.made if connection.there]
        assert len(there) <= LIMITS.connections
        for session in SESSIONS:
            assert sum(connection.key.session_id == session for connection in there) <= LIMITS.per_session
        in_use = [connection for connection in there if connection.usable and not connection.closed]
        assert len(in_use) <= pool.connections
    connector.gate.set()
    connector.closing.set()
    for call in calls:
        call.done.set()
    await asyncio.gather(*(call.task for call in calls), *closings)
    assert not any(call.closed_under_it for call in calls)
    await pool.close()
    assert pool.connections == 0
    assert pool.seats == 0
    assert all(connection.closed == 1 for connection in connector.made if connection.opened_by is not None)
    assert all(connection.closed <= 1 for connection in connector.made)


@settings(max_examples=150, deadline=None)
@example(
    [
        ("hold openings", None),
        ("call", ("s1", "a")),
        ("close session", "s1"),
        ("call", ("s1", "a")),
    ]
)
@given(st.lists(STEP, max_size=14))
def test_every_connection_is_closed_once_and_never_under_a_call(steps):
    async def bounded():
        async with asyncio.timeout(BOUND):
            await play(steps)

    asyncio.run(bounded())
