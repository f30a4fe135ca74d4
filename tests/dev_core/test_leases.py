"""Who runs what: offers, waiting leases, renewals, releases, takeover (harness-api 8.2 to 8.4)."""

from __future__ import annotations

import asyncio

import pytest

from tests.dev_core.support import (
    BOUND_S,
    CONNECTED,
    HELPER,
    PLAIN,
    SNAPSHOT,
    CoreClient,
    Refused,
    eventually,
    running_core,
)


async def sessions(core: CoreClient, count: int) -> list[str]:
    await core.agent()
    return [await core.session() for _ in range(count)]


async def test_sessions_are_offered_in_the_order_their_messages_came(core: CoreClient) -> None:
    ids = await sessions(core, 3)
    for session_id in ids:
        await core.say(session_id)
    harness = await core.connect()
    assert [(await harness.lease()).session_id for _ in ids] == ids


async def test_waiting_harnesses_are_served_in_the_order_they_asked(core: CoreClient) -> None:
    ids = await sessions(core, 2)
    first, second = await core.connect(), await core.connect()
    _, one = first.start("lease", {})
    await first.ask("hello", {"api": 1, "name": "x", "version": "1", "capabilities": {}})
    _, two = second.start("lease", {})
    await second.ask("hello", {"api": 1, "name": "x", "version": "1", "capabilities": {}})
    for session_id in ids:
        await core.say(session_id)
    async with asyncio.timeout(BOUND_S):
        leased = [(await answer)["run"]["sessionId"] for answer in (one, two)]
    assert leased == ids


async def test_an_abandoned_lease_request_gets_nothing(core: CoreClient) -> None:
    (session_id,) = await sessions(core, 1)
    first, second = await core.connect(), await core.connect()
    number, answer = first.start("lease", {})
    await first.hello()
    await first.abort(number)
    with pytest.raises(Refused, match="unavailable"):
        await answer
    await core.say(session_id)
    assert (await second.lease()).session_id == session_id


async def test_a_waiting_harness_that_leaves_takes_no_run_with_it(core: CoreClient) -> None:
    (session_id,) = await sessions(core, 1)
    first, second = await core.connect(), await core.connect()
    first.start("lease", {})
    await first.hello()
    await first.cut()
    await core.say(session_id)
    assert (await second.lease()).session_id == session_id


async def test_a_run_belongs_to_the_connection_that_leased_it(core: CoreClient) -> None:
    await sessions(core, 1)
    await core.say(await core.session())
    holder, other = await core.connect(), await core.connect()
    lease = await holder.lease()
    effect = lease.effect("model", "invocation_1")
    for method, params in (
        ("lease.renew", {"runId": lease.id}),
        ("lease.release", {"runId": lease.id, "reason": "shutdown"}),
        ("transcript.read", {"runId": lease.id}),
        ("effect.intent", lease.ask_intent(effect)),
        ("effect.outcome", {"runId": lease.id, "effectId": "e", "value": 1}),
        ("effect.outcome", {"runId": lease.id, "effectId": "e", "error": "x"}),
        ("session.mcp", {"runId": lease.id, "diagnostics": []}),
        ("turn.failed", {"runId": lease.id, "thrown": {"message": "x"}}),
        ("checkpoint", {"runId": lease.id, "status": "yielded"}),
    ):
        with pytest.raises(Refused) as caught:
            await other.ask(method, params)
        assert caught.value.code == "run_not_held", method
    assert (await holder.ask("lease.renew", {"runId": lease.id}))["ok"] is True


@pytest.mark.spec("harness-api:10.26")
async def test_a_lost_connection_is_waited_out_and_then_another_harness_finishes() -> None:
    async with running_core(lease_ms=300) as core:
        (session_id,) = await sessions(core, 1)
        await core.say(session_id)
        first, second = await core.connect(), await core.connect()
        lease = await first.lease()
        await lease.model("recorded")
        await first.cut()
        assert await core.status(session_id) == "running"
        again = await second.lease()
        assert again.result["run"]["epoch"] > lease.result["run"]["epoch"]
        assert again.start["checkpoint"] == lease.start["checkpoint"]
        assert [o["outcome"] for o in again.start["outcomes"]] == [{"value": "recorded"}]
        await again.complete()
        assert await core.status(session_id) == "completed"
        assert "run.lapsed" in await core.types(session_id)


@pytest.mark.spec("harness-api:10.18")
@pytest.mark.parametrize("recovers", [True, False])
async def test_after_a_lapse_a_model_call_is_rejoined_only_when_model_calls_recover(recovers: bool) -> None:
    async with running_core(lease_ms=300, model_recovers=recovers) as core:
        (session_id,) = await sessions(core, 1)
        await core.say(session_id)
        first, second = await core.connect(), await core.connect()
        lease = await first.lease()
        effect = lease.effect("model", "invocation_1")
        await lease.intent(effect)
        await first.cut()
        if recovers:
            again = await second.lease()
            assert await again.intent(effect) == {"status": "execute", "rejoin": True}
            assert (await core.effects(session_id))["model:invocation_1"]["attempts"] == 2
            assert "effect.rejoined" in await core.types(session_id)
            return
        uncertain = await core.until(session_id, "effect.uncertain")
        assert uncertain["payload"]["effectId"] == effect["effectId"]
        view = await core.view(session_id)
        assert view["status"] == "uncertain"
        assert view["waits"] == {"effectIds": [effect["effectId"]]}
        assert "Cancel the turn" in view["hint"]


@pytest.mark.parametrize("runner", ["sandbox", "mcp"])
async def test_after_a_lapse_a_tool_call_is_uncertain_and_never_handed_out_again(runner: str) -> None:
    async with running_core(lease_ms=300) as core:
        await core.agent(HELPER)
        session_id = await core.session("helper")
        await core.say(session_id)
        harness = await core.connect()
        lease = await harness.lease()
        await harness.ask(
            "session.mcp", {"runId": lease.id, "snapshot": SNAPSHOT, "diagnostics": [CONNECTED]}
        )
        effect = lease.call(
            *(("bash", "c1", "box") if runner == "sandbox" else ("docs__search", "c1", "docs"))
        )
        assert await lease.intent(effect) == {"status": "execute"}
        await harness.cut()
        await core.until(session_id, "turn.uncertain")
        assert (await core.effects(session_id))["tool:c1"]["status"] == "uncertain"
        refused = await core.post(f"/v1/sessions/{session_id}/messages", {"text": "next"})
        assert (refused.status, refused.code) == (409, "turn_uncertain")
        assert "/cancel" in refused.body["error"]["message"]
        assert (await core.post(f"/v1/sessions/{session_id}/cancel")).status == 200
        await core.say(session_id, "next")
        again = await (await core.connect()).lease()
        assert again.start["checkpoint"]["input"] == "next"
        assert again.start["outcomes"] == []


async def test_after_a_lapse_a_call_of_a_remote_server_is_handed_out_again_to_be_joined() -> None:
    docs = {"name": "docs", "type": "streamable-http", "url": "https://docs.example/mcp"}
    capability = {"id": "docs", "type": "agent", "mcpServers": {"docs": docs}}
    async with running_core(lease_ms=300) as core:
        await core.agent({**PLAIN, "id": "remote", "capabilities": [capability]})
        session_id = await core.session("remote")
        await core.say(session_id)
        harness = await core.connect()
        lease = await harness.lease()
        await harness.ask(
            "session.mcp", {"runId": lease.id, "snapshot": SNAPSHOT, "diagnostics": [CONNECTED]}
        )
        effect = lease.call("docs__search", "c1", "docs")
        assert await lease.intent(effect) == {"status": "execute"}
        await harness.cut()
        again = await (await core.connect()).lease()
        assert await again.intent(effect) == {"status": "execute", "rejoin": True}
        row = (await core.effects(session_id))["tool:c1"]
        assert (row["runner"], row["attempts"], row["status"]) == ("remote-mcp", 2, "invoking")


async def test_renewals_keep_a_lease_alive() -> None:
    async with running_core(lease_ms=1200) as core:
        (session_id,) = await sessions(core, 1)
        await core.say(session_id)
        harness = await core.connect()
        assert (await harness.hello())["renewEveryMs"] == 400
        lease = await harness.lease()
        # Time passes: longer than the lease, never so long between two renewals.
        for _ in range(4):
            await asyncio.sleep(0.4)
            assert (await harness.ask("lease.renew", {"runId": lease.id}))["ok"] is True
        await lease.complete()
        assert "run.lapsed" not in await core.types(session_id)


@pytest.mark.spec("harness-api:10.10")
async def test_a_lease_that_is_not_renewed_lapses_under_its_run_and_the_run_is_told() -> None:
    async with running_core(lease_ms=200) as core:
        (session_id,) = await sessions(core, 1)
        await core.say(session_id)
        harness = await core.connect()
        lease = await harness.lease()
        effect = lease.effect("model", "invocation_1")
        await lease.intent(effect)
        method, params = await harness.message()
        assert (method, params["runId"], params["reason"]) == ("cancel", lease.id, "ownership.lost")
        with pytest.raises(Refused, match="ownership_lost"):
            await lease.value(effect, "late")
        with pytest.raises(Refused, match="ownership_lost"):
            await lease.error(effect)
        assert await harness.ask("lease.renew", {"runId": lease.id}) == {"ok": True}
        with pytest.raises(Refused, match="ownership_lost"):
            await lease.complete()
        again = await harness.lease()
        assert again.session_id == session_id
        assert await again.intent(effect) == {"status": "execute", "rejoin": True}


async def test_a_released_run_is_offered_again_at_once_with_its_outcomes(core: CoreClient) -> None:
    (session_id,) = await sessions(core, 1)
    await core.say(session_id)
    harness = await core.connect()
    lease = await harness.lease()
    await lease.model("recorded")
    assert await harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"}) == {}
    with pytest.raises(Refused, match="run_not_held"):
        await lease.complete()
    again = await harness.lease()
    assert again.start["checkpoint"] == lease.start["checkpoint"]
    assert len(again.start["outcomes"]) == 1


@pytest.mark.spec("harness-api:10.33")
@pytest.mark.parametrize("reason", ["connection.lost", "ownership.lost"])
async def test_a_run_that_is_lost_is_offered_again_when_its_lease_lapses(reason: str) -> None:
    async with running_core(lease_ms=300) as core:
        (session_id,) = await sessions(core, 1)
        await core.say(session_id)
        harness = await core.connect()
        lease = await harness.lease()
        assert await harness.ask("lease.release", {"runId": lease.id, "reason": reason}) == {}
        assert await core.status(session_id) == "running"
        assert (await harness.lease()).session_id == session_id


async def test_a_harness_that_leaves_between_offer_and_answer_costs_the_session_nothing(
    core: CoreClient,
) -> None:
    await core.agent()
    harness = await core.connect()
    for _ in range(20):
        session_id = await core.session()
        number, answer = harness.start("lease", {})
        saying = asyncio.create_task(core.say(session_id))
        await asyncio.sleep(0)
        await harness.abort(number)
        await saying
        async with asyncio.timeout(BOUND_S):
            (result,) = await asyncio.gather(answer, return_exceptions=True)
        if isinstance(result, Refused):
            assert result.code == "unavailable"
        else:
            run_id = result["run"]["runId"]
            await harness.ask("lease.release", {"runId": run_id, "reason": "shutdown"})
        lease = await harness.lease()
        assert lease.session_id == session_id
        await lease.complete()


async def test_the_queue_shows_in_health(core: CoreClient) -> None:
    (session_id,) = await sessions(core, 1)
    await core.say(session_id)
    counts = (await core.get("/health")).body["harness"]
    assert counts == {"harnesses": 0, "waitingLeases": 0, "queuedSessions": 1, "heldRuns": 0}
    harness = await core.connect()
    await harness.lease()
    harness.start("lease", {})

    async def waits() -> bool:
        counts = (await core.get("/health")).body["harness"]
        return counts == {"harnesses": 1, "waitingLeases": 1, "queuedSessions": 0, "heldRuns": 1}

    await eventually(waits, "the counts follow")
