"""How much of one server's output is handled before the loop turns to the others: counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from services.mcp_pool import limits, stdio
from services.mcp_pool.limits import TURN_LINES
from services.mcp_pool.shares import Shares
from services.mcp_pool.stdio import StdioConnection
from tests.mcp_pool.support import BOUND, LIMITS

PIPE_BYTES = 256 * 1024
"""What asyncio reads of a pipe at a time."""
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
FLOOD = 100_000


class Child:
    """A server that has always more to say; `reading` as the pool last asked."""

    def __init__(self):
        self.reading = True
        self.pauses = 0
        self.unwritten = 0
        self.stdin_open = True

    def pause_output(self, stream):
        self.reading = False
        self.pauses += 1

    def resume_output(self, stream):
        self.reading = True

    async def stop(self, grace):
        pass


@pytest.mark.parametrize(
    ("line", "handled"), [(CHANGED, FLOOD), (LOG, 0)], ids=["that matter", "that do not"]
)
async def test_a_flood_of_lines_leaves_the_loop_to_others_after_each_share_of_them(
    monkeypatch, line, handled
):
    loop = asyncio.get_running_loop()
    turn, lines = 0, Counter()
    real = stdio.read_message

    def counted(text):
        lines[turn] += 1
        return real(text)

    monkeypatch.setattr(stdio, "read_message", counted)
    # Only lines count: a share never ends by the clock.
    monkeypatch.setattr(limits, "TURN_SECONDS", 3600.0)
    connection = StdioConnection(LIMITS, lambda _: None)
    connection._child = child = Child()
    pieces = [line * (PIPE_BYTES // len(line))] * (FLOOD // (PIPE_BYTES // len(line)) + 1)
    async with asyncio.timeout(BOUND):
        while pieces or connection._lines:
            turn += 1
            if pieces and child.reading:
                loop.call_soon(connection.child_output, "stdout", pieces.pop())
            await asyncio.sleep(0)
    total = sum(lines.values())
    assert total >= handled
    assert max(lines.values()) <= TURN_LINES
    if handled:
        assert child.pauses > 0
        assert len(lines) >= total / TURN_LINES
    else:
        # Those that mean nothing are left out by the piece; a piece's ends are looked at.
        assert total <= 4 * (FLOOD * len(line) / PIPE_BYTES + 1)
    await connection.close()


@pytest.mark.parametrize("limit", [("TURN_SECONDS", -1.0), ("TURN_BYTES", -1)], ids=["clock", "bytes"])
async def test_a_share_ends_by_the_clock_and_by_its_size_too(monkeypatch, limit):
    taken = []
    monkeypatch.setattr(stdio, "read_message", taken.append)
    monkeypatch.setattr(limits, *limit)
    connection = StdioConnection(LIMITS, lambda _: None)
    connection._child = child = Child()
    connection.child_output("stdout", CHANGED * 3)
    assert not taken
    assert not child.reading
    monkeypatch.setattr(limits, limit[0], 2**20)
    async with asyncio.timeout(BOUND):
        while not child.reading:  # noqa: ASYNC110  (the connection tells nobody)
            await asyncio.sleep(0)
    assert len(taken) == 3
    await connection.close()


async def test_servers_that_flood_together_have_one_share_in_each_round(monkeypatch):
    monkeypatch.setattr(limits, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(limits, "PAUSE_SECONDS", 0.0)
    shares, turns, others, taken = Shares(), Counter(), 0, []

    def flooding(name):
        def go_on():
            taken.append(name)
            turns[others] += 1
            if len(taken) < 300:
                shares.wait(go_on)

        return go_on

    for name in range(30):
        shares.wait(flooding(name))
    async with asyncio.timeout(BOUND):
        while len(taken) < 300:
            await asyncio.sleep(0)
            others += 1
    assert taken == [*range(30)] * 10
    # One server's turn, then the loop is everybody else's.
    assert set(turns.values()) == {1}


async def test_much_that_means_nothing_is_read_by_turns_too_and_a_long_answer_is_not():
    waiting = []
    connection = StdioConnection(LIMITS, lambda _: None, shares=Waiting(waiting))
    connection._child = child = Child()
    connection.child_output("stdout", LOG * (PIPE_BYTES // len(LOG)))
    assert not child.reading
    waiting.pop()()
    assert child.reading
    connection.child_output("stdout", LOG * 2)
    for _ in range(20):
        connection.child_output("stdout", b"x" * PIPE_BYTES)
    assert child.reading
    assert not waiting
    await connection.close()


class Waiting:
    def __init__(self, waiting):
        self.wait = waiting.append
