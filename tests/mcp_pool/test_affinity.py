"""Three mcp-pools as real processes: sessions stick, move only when they must, and nothing runs twice."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
from contextlib import AsyncExitStack

import pytest

from cli.ports import free_ports
from gateway.engine.contract import Abort, AbortKind
from gateway.executors import rendezvous
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunAborted
from tests.mcp_pool.processes import TOKEN, process
from tests.mcp_pool.replicas import gateway, run_with
from tests.mcp_pool.support import BOUND, process_gone, received, stdio, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SHARE = 3
"""Sessions that belong to each of the four replicas."""


class Fleet:
    """Three replicas, the address of a fourth, and a gateway that knows all four."""

    def __init__(self, folder, stack):
        self.folder = folder
        self.record = folder / "record"
        self.server = stdio("srv", record=self.record)
        self.ports = dataclasses.astuple(free_ports())[:4]
        self.running = {}
        self._stack = stack

    async def start(self, port):
        """A replica at its own place; afterwards the gateway has seen it."""
        place = self.folder / f"replica-{port}"
        place.mkdir(exist_ok=True)
        child, _ = await self._stack.enter_async_context(
            process(place, NYLORUN_GRPC_LISTEN=f"127.0.0.1:{port}")
        )
        self.running[f"127.0.0.1:{port}"] = child

    async def open(self):
        await asyncio.gather(*(self.start(port) for port in self.ports[:3]))
        self.gateway = await self._stack.enter_async_context(
            gateway(*(f"127.0.0.1:{port}" for port in self.ports), token=TOKEN)
        )
        await self.gateway.serving(3)
        self.sessions = self._sessions()

    def _sessions(self):
        names = [replica.name for replica in self.gateway.replicas.replicas]
        found = {name: [] for name in names}
        for number in itertools.count():
            session = f"session-{number}"
            mine = found[rendezvous.choose(names, session)]
            if len(mine) < SHARE:
                mine.append(session)
            if all(len(sessions) == SHARE for sessions in found.values()):
                return [session for sessions in found.values() for session in sessions]

    def run(self, session):
        return run_with(session, self.server)

    async def server_of(self, run):
        """The process id of the session's MCP server; starts it when there is none."""
        return (await self.gateway.call(run, "where"))["output"]["pid"]

    async def servers_of(self, sessions):
        return {session: await self.server_of(self.run(session)) for session in sessions}

    async def drain(self, address):
        """What SIGTERM does: no new calls, calls in flight go on."""
        self.running[address].send_signal(signal.SIGTERM)
        await self.gateway.serving(2)

    async def kill(self, address):
        self.running[address].kill()
        await self.running[address].wait()

    def begun(self):
        """Calls that servers were given, by their argument `mark`."""
        return [
            message["params"]["arguments"]["mark"]
            for message in received(self.record, "tools/call")
            if "mark" in message["params"]["arguments"]
        ]


@pytest.fixture
async def fleet(tmp_path):
    async with AsyncExitStack() as stack:
        fleet = Fleet(tmp_path, stack)
        await fleet.open()
        yield fleet


def homes(fleet):
    return {session: fleet.gateway.home(session) for session in fleet.sessions}


async def test_a_session_s_runs_find_its_server_and_sessions_spread(fleet):
    first = await fleet.servers_of(fleet.sessions)
    assert await fleet.servers_of(fleet.sessions) == first
    assert len(set(first.values())) == len(fleet.sessions)
    assert len(set(homes(fleet).values())) == 3


async def test_a_run_stays_where_it_began_when_a_fourth_comes_and_the_next_run_moves(fleet):
    before = homes(fleet)
    runs = {session: fleet.run(session) for session in fleet.sessions}
    servers = {session: await fleet.server_of(run) for session, run in runs.items()}
    await fleet.start(fleet.ports[3])
    await fleet.gateway.serving(4)
    moved = [session for session, address in homes(fleet).items() if address != before[session]]
    assert len(moved) == SHARE
    assert {homes(fleet)[session] for session in moved} == {f"127.0.0.1:{fleet.ports[3]}"}
    for session, run in runs.items():
        assert await fleet.server_of(run) == servers[session]
    after = await fleet.servers_of(fleet.sessions)
    assert {session for session in fleet.sessions if after[session] != servers[session]} == set(moved)


async def test_a_cancel_reaches_a_call_on_a_replica_that_drains(fleet):
    run, signal_ = fleet.run(fleet.sessions[0]), AbortSignal()
    call = asyncio.create_task(fleet.gateway.call(run, "never", {"mark": 1}, signal=signal_))
    await until(fleet.begun)
    await fleet.drain(fleet.gateway.home(fleet.sessions[0]))
    signal_.set(Abort(AbortKind.CANCEL, "a person"))
    with pytest.raises(RunAborted):
        await call
    await until(lambda: received(fleet.record, "notifications/cancelled"))
    assert fleet.begun() == [1]


async def test_a_draining_replica_finishes_its_calls_while_new_sessions_go_elsewhere(fleet, tmp_path):
    go = tmp_path / "go"
    run = fleet.run(fleet.sessions[0])
    draining = fleet.gateway.home(fleet.sessions[0])
    call = asyncio.create_task(fleet.gateway.call(run, "wait", {"file": str(go), "mark": 1}))
    await until(fleet.begun)
    await fleet.drain(draining)
    for session in fleet.sessions:
        assert fleet.gateway.home(session) != draining
        await fleet.server_of(fleet.run(session))
    assert not call.done()
    go.touch()
    assert (await call)["output"] == "waited"
    async with asyncio.timeout(BOUND):
        assert await fleet.running[draining].wait() == 0
    assert fleet.begun() == [1]


@pytest.mark.faults
async def test_only_the_sessions_of_a_lost_replica_move_and_the_next_call_opens_them_again(fleet):
    before, servers = homes(fleet), await fleet.servers_of(fleet.sessions)
    lost = before[fleet.sessions[0]]
    await fleet.kill(lost)
    after = await fleet.servers_of(fleet.sessions)
    moved = {session for session in fleet.sessions if after[session] != servers[session]}
    assert moved == {session for session, address in before.items() if address == lost}
    for session in moved:
        await until(lambda pid=servers[session]: process_gone(pid))
    assert {homes(fleet)[session] for session in moved} <= set(before.values()) - {lost}


@pytest.mark.faults
async def test_the_next_preparation_opens_the_servers_of_moved_sessions_before_any_call(fleet):
    await fleet.servers_of(fleet.sessions)
    mine = [
        session for session, address in homes(fleet).items() if address == homes(fleet)[fleet.sessions[0]]
    ]
    await fleet.kill(fleet.gateway.home(fleet.sessions[0]))
    starts = len(received(fleet.record, "initialize"))
    for session in mine:
        run = fleet.run(session)
        assert await fleet.gateway.mcp.reconnect(run, run.mcp_snapshot, AbortSignal()) == []
    assert len(received(fleet.record, "initialize")) == starts + len(mine)
    for session in mine:
        await fleet.server_of(fleet.run(session))
    assert len(received(fleet.record, "initialize")) == starts + len(mine)
    assert len(received(fleet.record, "tools/list")) == 0


@pytest.mark.faults
async def test_calls_in_flight_on_a_lost_replica_end_at_once_as_unknown_and_none_runs_twice(fleet):
    lost = fleet.gateway.home(fleet.sessions[0])
    runs = [fleet.run(session) for session in fleet.sessions]
    calls = [
        asyncio.create_task(fleet.gateway.call(run, "never", {"mark": number}))
        for number, run in enumerate(runs)
    ]
    await until(lambda: len(fleet.begun()) == len(fleet.sessions))
    on_lost = {number for number, session in enumerate(fleet.sessions) if fleet.gateway.home(session) == lost}
    await fleet.kill(lost)
    async with asyncio.timeout(BOUND):
        for number in on_lost:
            with pytest.raises(ExecutionFailed):
                await calls[number]
    assert not any(call.done() for number, call in enumerate(calls) if number not in on_lost)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert sorted(fleet.begun()) == list(range(len(fleet.sessions)))


@pytest.mark.faults
async def test_calls_all_the_while_as_replicas_are_killed_and_come_back_begin_at_most_once(fleet):
    """A call either completes, or began and is unknown, or never began; what began did so once."""
    stop, done, unknown = asyncio.Event(), [], []

    async def load(session):
        number = 0
        while not stop.is_set():
            mark = f"{session}/{number}"
            number += 1
            try:
                await fleet.gateway.call(fleet.run(session), "echo", {"mark": mark})
                done.append(mark)
            except ExecutionFailed:
                unknown.append(mark)

    loads = [asyncio.create_task(load(session)) for session in fleet.sessions[:6]]
    for port in fleet.ports[:3] * 2:
        so_far = len(done)
        await until(lambda so_far=so_far: len(done) >= so_far + 30)
        await fleet.kill(f"127.0.0.1:{port}")
        await fleet.start(port)
        await fleet.gateway.serving(3)
    stop.set()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*loads)
    begun = fleet.begun()
    assert len(begun) == len(set(begun)), "no call ran twice"
    assert set(done) <= set(begun)
    assert set(begun) <= set(done) | set(unknown)
    assert len(unknown) <= 6 * 6
