"""Cancel by a person, the deadline, runs that ignore both, and the core's own stop (harness-api 8.5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.dev_core.support import BOUND_S, HELPER, CoreClient, Harness, Lease, Refused, running_core


async def leased(core: CoreClient) -> tuple[Harness, Lease]:
    await core.agent(HELPER)
    await core.say(await core.session("helper"))
    harness = await core.connect()
    return harness, await harness.lease()


async def test_a_cancel_is_committed_before_the_run_is_told(core: CoreClient) -> None:
    harness, lease = await leased(core)
    answer = await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert (await core.types(lease.session_id))[-1] == "turn.cancelled"
    assert await harness.message() == (
        "cancel",
        {"runId": lease.id, "reason": "cancel", "message": "Turn cancelled"},
    )


@pytest.mark.parametrize("end", ["cancelled", "uncertain", "completed", "released"])
async def test_whatever_a_cancelled_run_reports_nothing_more_is_written(core: CoreClient, end: str) -> None:
    harness, lease = await leased(core)
    call = lease.call("bash", "c1", "box")
    await lease.intent(call)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    before = await core.log(lease.session_id)
    if end == "cancelled":
        assert await lease.output("turn.failed", status="cancelled", state=lease.state()) == {}
    elif end == "uncertain":
        await lease.error(call)
        ids = [call["effectId"]]
        assert await lease.output("turn.waiting", status="uncertain", effectIds=ids) == {}
    elif end == "completed":
        with pytest.raises(Refused, match="turn_cancelled"):
            await lease.complete("a")
    else:
        await harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    assert await core.log(lease.session_id) == before
    await core.say(lease.session_id, "next")
    assert (await harness.lease()).start["checkpoint"]["input"] == "next"


async def test_a_message_after_a_cancel_is_offered_when_the_old_run_has_ended(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    await core.say(lease.session_id, "next")
    number, answer = harness.start("lease", {})
    del number
    await harness.hello()
    assert not answer.done()
    await lease.output("turn.failed", status="cancelled", state=lease.state())
    assert (await answer)["input"]["checkpoint"]["input"] == "next"


async def test_a_queued_turn_is_withdrawn_without_a_word(core: CoreClient) -> None:
    await core.agent(HELPER)
    session_id = await core.session("helper")
    await core.say(session_id)
    await core.post(f"/v1/sessions/{session_id}/cancel")
    harness = await core.connect()
    _, answer = harness.start("lease", {})
    await harness.hello()
    assert not answer.done()
    assert harness.messages.empty()
    await core.say(session_id, "next")
    assert (await answer)["input"]["checkpoint"]["input"] == "next"


async def test_cancelling_twice_is_harmless_and_cancelling_nothing_says_so(core: CoreClient) -> None:
    harness, lease = await leased(core)
    path = f"/v1/sessions/{lease.session_id}/cancel"
    assert (await core.post(path)).status == 200
    assert (await core.post(path)).status == 200
    assert (await core.types(lease.session_id)).count("turn.cancelled") == 1
    await lease.output("turn.failed", status="cancelled", state=lease.state())
    await core.say(lease.session_id)
    again = await harness.lease()
    await again.complete()
    answer = await core.post(path)
    assert (answer.status, answer.code) == (409, "turn_over")
    idle = await core.session("helper")
    assert (await core.post(f"/v1/sessions/{idle}/cancel")).code == "turn_over"


async def test_a_run_that_ignores_its_cancel_is_given_up() -> None:
    async with running_core(abort_grace_ms=100) as core:
        harness, lease = await leased(core)
        call = lease.call("bash", "c1", "box")
        await lease.intent(call)
        await core.post(f"/v1/sessions/{lease.session_id}/cancel")
        await core.say(lease.session_id, "next")
        again = await harness.lease()
        assert again.start["checkpoint"]["input"] == "next"
        assert again.result["run"]["epoch"] > 2
        with pytest.raises(Refused, match="run_not_held"):
            await lease.error(call)
        assert (await core.effects(lease.session_id))["tool:c1"]["status"] == "uncertain"


async def test_past_its_deadline_a_run_is_aborted_and_the_turn_fails_with_that() -> None:
    async with running_core(deadline_ms=100) as core:
        harness, lease = await leased(core)
        call = lease.call("bash", "c1", "box")
        await lease.intent(call)
        method, params = await harness.message()
        assert (method, params["reason"]) == ("cancel", "deadline")
        with pytest.raises(Refused, match="internal"):
            await lease.intent(lease.effect("model", "late"))
        # A value that arrives after the deadline is still recorded.
        assert (await lease.value(call, 1))["status"] == "completed"
        assert await lease.output("turn.failed", status="cancelled", state=lease.state()) == {}
        failed = (await core.log(lease.session_id))[-1]
        assert failed["type"] == "turn.failed"
        assert failed["payload"]["error"] == {"code": "deadline", "message": params["message"]}


async def test_past_its_deadline_an_unknown_outcome_makes_the_turn_uncertain() -> None:
    async with running_core(deadline_ms=100) as core:
        harness, lease = await leased(core)
        call = lease.call("bash", "c1", "box")
        await lease.intent(call)
        await harness.message()
        await lease.error(call)
        await lease.output("turn.waiting", status="uncertain", effectIds=[call["effectId"]])
        assert await core.status(lease.session_id) == "uncertain"
        assert "effect.uncertain" in await core.types(lease.session_id)


async def test_a_run_that_ignores_its_deadline_fails_without_it() -> None:
    async with running_core(deadline_ms=100, abort_grace_ms=100) as core:
        _, lease = await leased(core)
        await lease.intent(lease.call("bash", "c1", "box"))
        failed = await core.until(lease.session_id, "turn.failed")
        assert failed["payload"]["error"]["code"] == "deadline"
        assert await core.status(lease.session_id) == "failed"
        with pytest.raises(Refused, match="run_not_held"):
            await lease.complete()


async def test_a_stop_gives_runs_back_and_closes_with_1001(core: CoreClient) -> None:
    harness, lease = await leased(core)
    core.stop.set()
    method, params = await harness.message()
    assert (method, params["reason"]) == ("cancel", "shutdown")
    with pytest.raises(Refused, match="internal"):
        await lease.complete()
    async with asyncio.timeout(BOUND_S):
        await harness.closed.wait()
    assert (harness.socket.close_code, harness.socket.close_reason) == (1001, "core is stopping")


async def test_after_a_stop_in_order_the_turn_goes_on_without_a_lapse(tmp_path: Path) -> None:
    database = tmp_path / "core.db"
    async with running_core(database) as core:
        harness, lease = await leased(core)
        await lease.model("recorded")
        core.stop.set()
        await harness.message()
        await harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    async with running_core(database) as core:
        again = await (await core.connect()).lease()
        assert again.start["checkpoint"] == lease.start["checkpoint"]
        assert len(again.start["outcomes"]) == 1
        assert "run.lapsed" not in await core.types(lease.session_id)
