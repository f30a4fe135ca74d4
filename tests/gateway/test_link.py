from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from gateway.fleet import AlwaysReady
from tests.gateway.support import (
    HELLO,
    NEVER,
    Refuse,
    effect,
    events_of,
    for_ever,
    gateway,
    logs,
    one_after_another,
    settle,
    until_aborted,
)
from tests.gateway.virtual_time import virtual_time

EXECUTE = {"status": "execute"}


def now() -> float:
    return asyncio.get_running_loop().time()


def waits(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# Hello


@virtual_time
async def test_hello_introduces_the_harness_and_what_it_can_do():
    async with gateway(backends=("virtual",)) as gw:
        core = await gw.greeted()
        hello = await core.seen("hello")
        assert hello["p"] == {
            "api": 1,
            "name": "harness",
            "version": "0.17.0-beta+whippletree.0",
            "capabilities": {"workspace": {"backends": ["virtual"]}},
        }
        await core.expect("lease")
        assert core.frames.index(hello) == 0


@virtual_time
async def test_without_workspaces_no_capability_is_declared():
    async with gateway() as gw:
        core = await gw.greeted()
        assert (await core.seen("hello"))["p"]["capabilities"] == {}


@pytest.mark.spec("harness-api:10.9")
@pytest.mark.parametrize("answer", [{**HELLO, "api": 2}, {**HELLO, "tenantId": ""}, Refuse("internal")])
@virtual_time
async def test_a_failed_hello_closes_and_backs_off(answer):
    async with gateway() as gw:
        gw.core.auto["hello"] = answer
        with logs() as captured:
            core = await gw.core.connection()
            assert await core.closed == (1000, "reconnecting")
            await gw.core.connection(2)
        assert events_of(captured)[0] == "harness_connect_failed"
        assert waits(gw.core.dials) == [0.5]
        assert gw.connected == []
        assert not gw.link.connected
        assert "lease" not in [frame.get("m") for frame in core.frames]


@virtual_time
async def test_the_first_hello_of_the_process_says_whom_we_work_for():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.greeted()
        await core.expect("lease")
        gw.core.auto["hello"] = {**HELLO, "tenantId": "tn_2", "sandbox": {"backend": "virtual"}}
        core.close()
        core = await gw.leased(number=2)
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await core.expect("effect.outcome")
        run = gw.fake.executions[0].run
        assert (run.tenant_id, run.preference) == ("tn_1", "auto")


@virtual_time
async def test_there_is_no_limit_for_hello_but_the_silence():
    async with gateway() as gw:
        gw.core.auto["hello"] = NEVER
        core = await gw.core.connection()
        for _ in range(10):
            await asyncio.sleep(60)
            core.ping()
        assert len(gw.core.dials) == 1


# Reconnecting


@pytest.mark.spec("harness-api:10.1")
@virtual_time
async def test_three_refused_dials_are_logged_and_waited_for_and_the_fourth_works():
    async with gateway(chance=lambda: 0.5) as gw:
        gw.core.refusals = ["refused: 401"] * 3
        with logs() as captured:
            await asyncio.sleep(0)
            assert not gw.link.connected
            core = await gw.core.connection()
            await core.expect("lease")
        assert [(entry["event"], entry.get("error")) for entry in captured] == [
            ("harness_connect_failed", "refused: 401")
        ] * 3 + [("harness_connected", None)]
        assert waits(gw.core.dials) == [0.5, 0.75, 1.25]
        assert gw.link.connected


@pytest.mark.spec("operations:13.16")
@virtual_time
async def test_an_hour_of_refusals_is_an_hour_of_warnings_and_then_it_connects():
    async with gateway(chance=lambda: 0.999) as gw:
        gw.core.refusals = ["refused: 401"] * 100_000
        with logs() as captured:
            await asyncio.sleep(3600)
            assert set(events_of(captured)) == {"harness_connect_failed"}
            assert max(waits(gw.core.dials)) <= 10
            gw.core.refusals.clear()
            await gw.greeted()


@pytest.mark.spec("harness-api:10.2")
@pytest.mark.parametrize(("lasted", "wait"), [(11.0, 0.5), (3.0, 2.25)])
@virtual_time
async def test_only_a_connection_that_lasted_starts_the_waits_again(lasted, wait):
    async with gateway() as gw:
        gw.core.refusals = ["no"] * 3
        core = await gw.core.connection()
        await asyncio.sleep(lasted)
        lost = now()
        core.close(1006, "")
        await gw.core.connection(2)
        assert gw.core.dials[-1] - lost == pytest.approx(wait)


@pytest.mark.spec("harness-api:10.3")
@pytest.mark.parametrize("message", [b"\x00", "{", "\ufeff{}"])
@virtual_time
async def test_a_message_that_is_no_json_text_closes_and_reconnects(message):
    async with gateway() as gw:
        core = await gw.greeted()
        with logs() as captured:
            core.send(message)
            assert await core.closed == (1007, "Harness API frames are JSON text")
            await gw.core.connection(2)
        lost = next(entry for entry in captured if entry["event"] == "harness_connection_lost")
        assert lost["reason"] == "Harness API frames are JSON text (1007)"


@virtual_time
async def test_a_close_by_core_is_logged_with_its_reason_and_code():
    async with gateway() as gw:
        core = await gw.greeted()
        await core.expect("lease")
        with logs() as captured:
            core.close(1001, "core is stopping")
            await gw.core.connection(2)
        assert captured[0]["reason"] == "core is stopping (1001)"


@virtual_time
async def test_ids_start_at_one_again_on_every_connection():
    async with gateway() as gw:
        core = await gw.greeted()
        await core.expect("lease")
        core.close()
        core = await gw.core.connection(2)
        assert (await core.seen("hello"))["id"] == 1
        assert (await core.expect("lease"))["id"] == 2


@virtual_time
async def test_a_fault_of_ours_in_a_connection_ends_in_another_dial(monkeypatch):
    def broken(self: Any, message: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("gateway.runs.live.LiveRuns.message", broken)
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        await core.expect("effect.intent")
        with logs() as captured:
            core.tell("cancel", runId="r1", reason="cancel")
            await gw.core.connection(2)
        assert events_of(captured)[0] in ("harness_connect_failed", "harness_release_failed")
        assert gw.link.facts() == []


# Liveness


@pytest.mark.spec("harness-api:10.32")
@virtual_time
async def test_a_silent_core_is_dropped_after_90_to_120_s_without_a_close_frame():
    async with gateway() as gw:
        core = await gw.greeted()
        await asyncio.sleep(10)
        core.ping()
        heard = now()
        with logs() as captured:
            assert await core.closed == (1006, "")
            assert 90 < now() - heard <= 120
            await gw.core.connection(2)
        assert captured[-1 if captured[-1]["event"] == "harness_connection_lost" else 0]["reason"] == (
            "nothing heard for 90 s (1006)"
        )


@pytest.mark.spec("harness-api:10.32")
@virtual_time
async def test_pings_alone_keep_a_connection():
    async with gateway() as gw:
        core = await gw.greeted()
        for _ in range(40):
            await asyncio.sleep(30)
            core.ping()
        assert not core.closed.done()


# Stopping


@virtual_time
async def test_a_stop_with_nothing_to_do_gives_the_lease_up_and_closes():
    async with gateway() as gw:
        core = await gw.greeted()
        asked = await core.expect("lease")
        await gw.link.stop(10.0)
        await core.abort_of(asked)
        assert await core.closed == (1000, "harness stopped")
        core.answer(asked, {})


@virtual_time
async def test_a_stop_waits_until_the_runs_are_given_back():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["effect.outcome"] = NEVER
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        stopping = asyncio.create_task(gw.link.stop(10.0))
        report = await core.seen("effect.outcome")
        await asyncio.sleep(3)
        assert not core.closed.done()
        core.answer(report, {"status": "uncertain"})
        await core.seen("lease.release", reason="shutdown")
        await stopping
        assert await core.closed == (1000, "harness stopped")


@pytest.mark.spec("harness-api:10.33")
@virtual_time
async def test_a_stop_leaves_a_run_behind_that_ignores_its_abort():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = for_ever
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        started = now()
        await gw.link.stop(10.0)
        assert now() - started == pytest.approx(10.0)
        assert await core.closed == (1000, "harness stopped")
        assert "lease.release" not in core.methods()


@virtual_time
async def test_a_stop_wakes_the_wait_before_a_dial():
    async with gateway() as gw:
        gw.core.refusals = ["no"] * 100
        await asyncio.sleep(60)
        dials = len(gw.core.dials)
        before = now()
        await gw.link.stop(10.0)
        await settle()
        assert (now(), len(gw.core.dials)) == (before, dials)


@virtual_time
async def test_a_socket_that_opens_after_the_stop_is_closed_at_once():
    async with gateway() as gw:
        dial = gw.link._dial

        async def slow(url: str, token: str) -> Any:
            await asyncio.sleep(5)
            return await dial(url, token)

        gw.link._dial = slow
        await asyncio.sleep(1)
        await gw.link.stop(10.0)
        core = await gw.core.connection()
        assert await core.closed == (1000, "harness stopped")
        assert core.frames == []


@virtual_time
async def test_a_lease_that_crosses_the_stop_is_ignored():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.greeted()
        asked = await core.expect("lease")
        stopping = asyncio.create_task(gw.link.stop(10.0))
        await asyncio.sleep(0)
        core.answer(asked, {})
        await stopping
        assert core.methods() == []


@virtual_time
async def test_a_core_that_reads_nothing_does_not_hold_the_stop_up_for_ever():
    async with gateway() as gw:
        core = await gw.greeted()
        await core.expect("lease")
        core.gate.clear()
        started = now()
        await gw.link.stop(1.0)
        assert await core.closed == (1006, "")
        assert now() - started <= 11


# Services


class Services:
    """Services that a test starts and stops."""

    def __init__(self, ready: bool) -> None:
        self._ready = ready
        self._changed = asyncio.Event()

    def set(self, ready: bool) -> None:
        self._ready = ready
        self._changed.set()
        self._changed = asyncio.Event()

    def ready(self) -> bool:
        return self._ready

    def missing(self) -> list[str]:
        return [] if self._ready else ["mcp-pool"]

    def reasons(self) -> dict[str, str]:
        return {} if self._ready else {"mcp-pool": "It is away."}

    def in_flight(self) -> dict[str, int]:
        return {}

    async def wait(self, ready: bool) -> None:
        while self._ready is not ready:
            await self._changed.wait()


@virtual_time
async def test_core_is_not_dialled_before_all_services_serve_and_that_is_said_every_10_s():
    services = Services(ready=False)
    with logs() as captured:
        async with gateway(services=services) as gw:
            await asyncio.sleep(25)
            assert gw.core.dials == []
            waiting = [entry for entry in captured if entry["event"] == "harness_waiting_for_services"]
            assert [entry["missing"] for entry in waiting] == [["mcp-pool"]] * 3
            services.set(True)
            core = await gw.greeted()
            await core.expect("lease")


@virtual_time
async def test_a_stop_while_waiting_for_services_ends_at_once():
    async with gateway(services=Services(ready=False)) as gw:
        await asyncio.sleep(3)
        await gw.link.stop(10.0)


@virtual_time
async def test_a_service_that_is_back_in_time_changes_nothing():
    services = Services(ready=True)
    async with gateway(services=services) as gw:
        core = await gw.greeted()
        asked = await core.expect("lease")
        for _ in range(3):
            services.set(False)
            await asyncio.sleep(9)
            services.set(True)
            await asyncio.sleep(9)
        assert {"t": "abort", "id": asked["id"]} not in core.frames


@virtual_time
async def test_a_service_gone_for_10_s_ends_the_leasing_but_not_the_connection_or_a_run():
    services = Services(ready=True)
    async with gateway(one_after_another(effect("e1")), services=services) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        asked = await core.expect("lease")
        lost = now()
        services.set(False)
        await core.abort_of(asked)
        assert now() - lost == pytest.approx(10)
        await asyncio.sleep(30)
        core.ping()
        assert [frame for frame in core.inbox if frame.get("m") == "lease"] == []
        assert await core.seen("lease.renew", runId="r1")
        core.answer(intent, {"status": "completed", "outcome": {"value": 1}})
        core.answer(await core.expect("turn.completed"), {})
        await settle()
        assert [frame for frame in core.inbox if frame.get("m") == "lease"] == []
        services.set(True)
        await core.expect("lease")
        assert len(gw.core.dials) == 1


@virtual_time
async def test_services_of_this_process_are_always_there():
    services = AlwaysReady()
    assert services.ready()
    assert services.missing() == ()
    await services.wait(True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await services.wait(False)


# Draining


@virtual_time
async def test_without_leasing_held_runs_go_on_and_no_connection_leases_again():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        asked = await core.expect("lease")
        gw.link.stop_leasing()
        await core.abort_of(asked)
        core.answer(await core.expect("effect.intent"), {"status": "completed", "outcome": {"value": 1}})
        core.answer(await core.expect("turn.completed"), {})
        core.close()
        core = await gw.core.connection(2)
        await asyncio.sleep(5)
        assert [frame.get("m") for frame in core.frames] == ["hello"]
