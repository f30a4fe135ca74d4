"""The ends of a run (harness-api 8.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dev_core.support import BOUND_S, HELPER, CoreClient, Harness, Lease, Refused, running_core

CALL = {
    "callId": "c1",
    "toolName": "note",
    "args": {"text": "x"},
    "status": "interaction",
    "interaction": {"id": "t:0:interaction:i", "kind": "approval", "prompt": "Send it?"},
}


def edit(keep: int, *entries: Any) -> dict[str, Any]:
    return {"keep": keep, "entries": list(entries), "length": keep + len(entries)}


async def leased(core: CoreClient) -> tuple[Harness, Lease]:
    await core.agent(HELPER)
    await core.say(await core.session("helper"))
    harness = await core.connect()
    return harness, await harness.lease()


async def entries_of_next_turn(core: CoreClient, harness: Harness, session_id: str) -> tuple[Lease, Any]:
    await core.say(session_id, "next")
    lease = await harness.lease()
    read = await harness.ask("transcript.read", {"runId": lease.id})
    assert read["cursor"] == lease.start["transcript"]["cursor"]
    return lease, read["entries"]


async def test_completed_keeps_state_and_edits_and_answers_the_cursor(core: CoreClient) -> None:
    harness, lease = await leased(core)
    answer = await lease.output(
        "turn.completed",
        status="completed",
        state=lease.state(state={"memory": 1}),
        transcript=[edit(0, "a", "b"), edit(1, "c"), edit(2, "d", "e")],
        output=None,
    )
    log = await core.log(lease.session_id)
    edits = [event for event in log if event["type"] == "transcript.updated"]
    assert [event["payload"] for event in edits] == [edit(0, "a", "b"), edit(1, "c"), edit(2, "d", "e")]
    assert answer == {"cursor": edits[-1]["seq"]}
    assert log[-1]["payload"] == {"output": None}
    again, entries = await entries_of_next_turn(core, harness, lease.session_id)
    assert entries == ["a", "c", "d", "e"]
    assert again.start["checkpoint"]["state"]["state"] == {"memory": 1}


async def test_without_edits_the_starting_cursor_is_answered(core: CoreClient) -> None:
    harness, lease = await leased(core)
    cursor = (await lease.complete("a"))["cursor"]
    again, _ = await entries_of_next_turn(core, harness, lease.session_id)
    assert await again.complete() == {"cursor": cursor}


async def test_paused_waits_for_a_person_and_goes_on_in_the_next_segment(core: CoreClient) -> None:
    harness, lease = await leased(core)
    turn_id = lease.start["checkpoint"]["turnId"]
    state = lease.state("paused")
    await lease.output("turn.paused", status="paused", state=state, transcript=[edit(0, "a")], pending=[CALL])
    view = await core.view(lease.session_id)
    assert (view["status"], view["activeTurnId"]) == ("paused", turn_id)
    assert view["interactions"][0]["prompt"] == "Send it?"
    assert view["interactions"][0]["toolName"] == "note"
    approve = {"interactionId": "t:0:interaction:i", "approved": True}
    assert (await core.post(f"/v1/sessions/{lease.session_id}/approve", approve)).status == 202
    again = await harness.lease()
    assert again.start["type"] == "approval.answer"
    checkpoint = again.start["checkpoint"]
    assert checkpoint["input"] == {"kind": "approve", **approve}
    assert (checkpoint["segment"], checkpoint["turnId"], checkpoint["state"]) == (1, turn_id, state)
    read = await harness.ask("transcript.read", {"runId": again.id})
    assert read["entries"] == ["a"]
    await again.complete("b", keep=1)
    _, entries = await entries_of_next_turn(core, harness, lease.session_id)
    assert entries == ["a", "b"]


async def test_yielded_goes_on_at_once_with_continue(core: CoreClient) -> None:
    harness, lease = await leased(core)
    state = lease.state("active", turn={"turnId": "x"})
    answer = await lease.output("checkpoint", status="yielded", state=state, transcript=[edit(0, "a")])
    again = await harness.lease()
    checkpoint = again.start["checkpoint"]
    assert (checkpoint["segment"], checkpoint["input"]) == (1, {"kind": "continue"})
    assert checkpoint["state"] == state
    assert again.start["type"] == "turn.start"
    assert again.start["transcript"] == answer
    assert again.start["outcomes"] == []


@pytest.mark.parametrize("end", ["failed", "cancelled", "thrown", "user"])
async def test_a_turn_that_ends_badly_leaves_the_session_where_it_was(core: CoreClient, end: str) -> None:
    harness, lease = await leased(core)
    before = lease.state(marker="before")
    await lease.output("turn.completed", status="completed", state=before, transcript=[edit(0, "a")])
    await core.say(lease.session_id, "second")
    second = await harness.lease()
    changed = second.state("active", marker="changed")
    await second.output("checkpoint", status="yielded", state=changed, transcript=[edit(0, "b", "c")])
    third = await harness.lease()
    if end == "failed":
        error = {"code": "model.auth", "message": "no key", "path": "x"}
        answer = await third.output(
            "turn.failed",
            status="failed",
            state=third.state("failed"),
            transcript=[edit(2, "d")],
            error=error,
        )
        assert answer == {}
        assert (await core.log(lease.session_id))[-1]["payload"] == {"error": error}
    elif end == "cancelled":
        answer = await third.output(
            "turn.failed", status="cancelled", state=third.state("cancelled"), transcript=[edit(2, "d")]
        )
        assert answer == {}
    elif end == "thrown":
        with pytest.raises(Refused, match="internal: boom"):
            await third.output("turn.failed", thrown={"code": "execution.incompatible", "message": "boom"})
        payload = (await core.log(lease.session_id))[-1]["payload"]
        assert payload["message"] == "boom"
        assert payload["error"] == {"code": "execution.incompatible", "message": "boom"}
    else:
        await core.post(f"/v1/sessions/{lease.session_id}/cancel")
        assert await third.output("turn.failed", status="cancelled", state=third.state("cancelled")) == {}
    expected = "cancelled" if end in ("cancelled", "user") else "failed"
    assert await core.status(lease.session_id) == expected
    again, entries = await entries_of_next_turn(core, harness, lease.session_id)
    assert entries == ["a"]
    state = again.start["checkpoint"]["state"]
    assert state == (third.state("cancelled") if end == "cancelled" else before)


async def test_a_first_turn_that_fails_leaves_no_state_at_all(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await lease.output("turn.failed", status="failed", error={"code": "x", "message": "y"})
    await core.say(lease.session_id, "again")
    again = await harness.lease()
    assert "state" not in again.start["checkpoint"]
    assert again.start["transcript"] == {"cursor": -1}


async def test_thrown_for_lost_ownership_writes_nothing() -> None:
    async with running_core(lease_ms=300) as core:
        harness, lease = await leased(core)
        with pytest.raises(Refused, match="ownership_lost"):
            await lease.output("turn.failed", thrown={"code": "ownership_lost", "message": "gone"})
        assert "turn.failed" not in await core.types(lease.session_id)
        assert (await harness.lease()).session_id == lease.session_id


async def test_waiting_stays_until_an_outcome_and_uncertain_until_a_person(core: CoreClient) -> None:
    await core.agent(HELPER, actions={"url": "http://127.0.0.1:9/never"})
    harness = await core.connect()
    await core.say(await core.session("helper"))
    lease = await harness.lease()
    call = lease.call("bash", "c1", "box")
    await lease.intent(call)
    await lease.error(call)
    ids = [call["effectId"]]
    assert await lease.output("turn.waiting", status="uncertain", effectIds=ids) == {}
    view = await core.view(lease.session_id)
    assert (view["status"], view["waits"]) == ("uncertain", {"effectIds": ids})


@pytest.mark.parametrize(
    ("method", "members", "says"),
    [
        ("turn.completed", {"status": "paused"}, "status"),
        ("turn.completed", {"status": "completed", "output": 1}, "state"),
        ("turn.completed", {"status": "completed", "state": {"transcript": []}}, "edits"),
        (
            "turn.completed",
            {"status": "completed", "state": {"transcript": [1]}, "transcript": []},
            "transcript",
        ),
        ("turn.completed", {"status": "completed", "state": {}, "transcript": []}, "transcript"),
        (
            "turn.completed",
            {"status": "completed", "state": {"transcript": []}, "transcript": [edit(1, "a")]},
            "keeps 1 of 0",
        ),
        (
            "turn.completed",
            {
                "status": "completed",
                "state": {"transcript": []},
                "transcript": [{"keep": 0, "entries": ["a"], "length": 2}],
            },
            "says 2",
        ),
        ("turn.completed", {"thrown": {"message": "x"}}, "thrown"),
        ("turn.failed", {"status": "failed", "thrown": {"message": "x"}}, "thrown"),
        ("turn.failed", {}, "status"),
        ("turn.waiting", {"status": "waiting"}, "waits for"),
        ("turn.waiting", {"status": "waiting", "effectIds": []}, "waits for"),
        ("turn.waiting", {"status": "waiting", "effectIds": ["unknown"]}, "unknown"),
        ("turn.waiting", {"status": "waiting", "effectIds": ["\ud800"]}, "asked for"),
        ("checkpoint", {"status": "completed"}, "status"),
    ],
)
async def test_an_output_that_can_not_be_is_refused_and_fails_the_turn(
    core: CoreClient, method: str, members: dict[str, Any], says: str
) -> None:
    _, lease = await leased(core)
    with pytest.raises(Refused, match=says) as caught:
        await lease.output(method, **members)
    assert caught.value.code == "invalid"
    log = await core.log(lease.session_id)
    assert log[-1]["type"] == "turn.failed"
    assert log[-1]["payload"]["error"]["code"] == "output.invalid"
    assert "transcript.updated" not in [event["type"] for event in log]
    with pytest.raises(Refused, match="run_not_held"):
        await lease.complete()


@pytest.mark.spec("harness-api:10.27")
async def test_an_output_sent_twice_is_settled_once_and_then_over(core: CoreClient) -> None:
    harness, lease = await leased(core)
    params = {
        "runId": lease.id,
        "status": "completed",
        "state": lease.state(),
        "transcript": [edit(0, "a")],
    }
    _, first = harness.start("turn.completed", params)
    _, second = harness.start("turn.completed", params)
    _, other = harness.start("turn.failed", {"runId": lease.id, "thrown": {"message": "x"}})
    async with asyncio.timeout(BOUND_S):
        assert await first == await second
        with pytest.raises(Refused, match="run_not_held"):
            await other
    assert (await core.types(lease.session_id)).count("turn.completed") == 1
    with pytest.raises(Refused, match="run_not_held"):
        await harness.ask("turn.completed", params)
    with pytest.raises(Refused, match="run_not_held"):
        await harness.ask("lease.renew", {"runId": lease.id})


async def test_a_second_turn_can_not_be_settled_by_the_first_ones_run(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    await core.say(lease.session_id, "second")
    with pytest.raises(Refused, match="turn_cancelled"):
        await lease.complete("a")
    second = await harness.lease()
    assert second.start["checkpoint"]["input"] == "second"
    assert "state" not in second.start["checkpoint"]
