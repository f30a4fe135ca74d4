"""Actions: what is posted to an agent's endpoint, and what its answer does (harness-api 8.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.dev_core.effects.poster import MAX_POSTS_AT_ONCE
from tests.dev_core.endpoint import Endpoint, endpoint
from tests.dev_core.support import BOUND_S, HELPER, CoreClient, Harness, Lease, eventually, running_core

HOOKED = {
    "manifestSchemaVersion": 4,
    "id": "hooked",
    "capabilities": [{"id": "rules", "type": "agent", "hooks": [{"at": "before", "scope": "turn"}]}],
}


@pytest.fixture
async def actions() -> AsyncIterator[Endpoint]:
    async with endpoint() as made:
        yield made


async def leased(
    core: CoreClient, actions: Endpoint, manifest: dict[str, Any] = HELPER
) -> tuple[Harness, Lease]:
    await core.agent(manifest, actions={"url": actions.url})
    await core.say(await core.session(manifest["id"]))
    harness = await core.connect()
    return harness, await harness.lease()


async def waiting(core: CoreClient, actions: Endpoint) -> tuple[Harness, Lease, dict[str, Any]]:
    """A session whose run ended waiting for an Action that is held at its endpoint."""
    harness, lease = await leased(core, actions)
    call = lease.call("lookup", "c1")
    assert await lease.intent(call) == {"status": "pending"}
    await lease.output("turn.waiting", status="waiting", effectIds=[call["effectId"]])
    assert await core.status(lease.session_id) == "waiting"
    return harness, lease, call


@pytest.mark.spec("harness-api:10.19")
async def test_an_outcome_reaches_the_run_that_holds_the_session(core: CoreClient, actions: Endpoint) -> None:
    harness, lease = await leased(core, actions)
    outcome = {"value": {"kind": "completed", "output": "done"}, "statePatch": {"last": "ox"}}
    actions.script = actions.answer(200, outcome)
    call = lease.call("lookup", "c1", context={"callId": "c1", "state": {"a": 1}})
    assert await lease.intent(call) == {"status": "pending"}
    resolved = {"runId": lease.id, "effectId": call["effectId"], "outcome": outcome}
    assert await harness.message() == ("effect.resolved", resolved)
    assert actions.intents == [call]
    log = await core.log(lease.session_id)
    assert [event["type"] for event in log[-2:]] == ["action.pending", "tool.completed"]
    assert log[-1]["payload"]["outcome"] == outcome
    # It was known when the run ended all the same, so the session is offered again.
    await lease.output("turn.waiting", status="waiting", effectIds=[call["effectId"]])
    again = await harness.lease()
    assert [o["outcome"] for o in again.start["outcomes"]] == [outcome]


@pytest.mark.spec("harness-api:10.20")
async def test_an_outcome_after_the_run_ended_offers_the_session_again(
    core: CoreClient, actions: Endpoint
) -> None:
    actions.script = actions.answer(200, {"value": 7}, held=True)
    harness, lease, call = await waiting(core, actions)
    actions.go_on.set()
    again = await harness.lease()
    assert again.start["checkpoint"] == lease.start["checkpoint"]
    assert [(o["effectId"], o["outcome"]) for o in again.start["outcomes"]] == [
        (call["effectId"], {"value": 7})
    ]
    assert harness.messages.empty()


async def test_202_means_that_the_outcome_comes_by_itself(core: CoreClient, actions: Endpoint) -> None:
    actions.script = actions.answer(202)
    harness, lease, call = await waiting(core, actions)
    path = f"/v1/sessions/{lease.session_id}/effects/{call['effectId']}/outcome"
    assert (await core.post(path, {"value": 7, "statePatch": {}})).body["result"] == "completed"
    again = await harness.lease()
    assert again.start["outcomes"][0]["outcome"] == {"value": 7, "statePatch": {}}
    # The same once more is no fault, another one is.
    assert (await core.post(path, {"value": 7, "statePatch": {}})).body["result"] == "repeated"
    other = await core.post(path, {"value": 8})
    assert (other.status, other.code) == (409, "already_settled")
    assert actions.posts[call["effectId"]] == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no such word"}}, "The Action endpoint answered 422: no such word"),
        ({"message": "m"}, "The Action endpoint answered 422: m"),
        ({"error": "text"}, "The Action endpoint answered 422: text"),
        (b"<html>", "The Action endpoint answered 422"),
        ([], "The Action endpoint answered 422"),
    ],
)
async def test_4xx_is_a_failed_outcome_that_the_model_reads(
    core: CoreClient, actions: Endpoint, body: Any, message: str
) -> None:
    actions.script = actions.answer(422, body)
    harness, lease = await leased(core, actions)
    await lease.intent(lease.call("lookup", "c1"))
    _, params = await harness.message()
    value = {"kind": "failed", "code": "endpoint.rejected", "message": message}
    assert params["outcome"] == {"value": value}


@pytest.mark.parametrize(
    "answer",
    [
        (500, {"value": 1}),
        (503, None),
        (201, {"value": 1}),
        (302, None),
        (200, b"not json"),
        (200, {"values": 1}),
        (200, {"value": 1, "extra": 2}),
        (200, {"value": 1, "statePatch": []}),
    ],
)
async def test_any_other_answer_makes_the_effect_uncertain_and_is_never_posted_again(
    core: CoreClient, actions: Endpoint, answer: tuple[int, Any]
) -> None:
    actions.script = actions.answer(*answer)
    harness, lease = await leased(core, actions)
    call = lease.call("lookup", "c1")
    await lease.intent(call)
    await core.until(lease.session_id, "effect.uncertain")
    await lease.output("turn.waiting", status="waiting", effectIds=[call["effectId"]])
    assert await core.status(lease.session_id) == "uncertain"
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    await core.say(lease.session_id, "next")
    await harness.lease()
    assert actions.posts == {call["effectId"]: 1}


async def test_no_answer_is_uncertain(actions: Endpoint) -> None:
    async with running_core(action_timeout_ms=200) as core:
        actions.script = actions.answer(200, {"value": 1}, held=True)
        _, lease, call = await waiting(core, actions)
        event = await core.until(lease.session_id, "turn.uncertain")
        assert event["payload"] == {"effectIds": [call["effectId"]]}
        assert await core.status(lease.session_id) == "uncertain"
        actions.go_on.set()


async def test_nobody_listening_is_uncertain_too(core: CoreClient, actions: Endpoint) -> None:
    actions.url = "http://127.0.0.1:9/nobody"
    _, lease = await leased(core, actions)
    await lease.intent(lease.call("lookup", "c1"))
    event = await core.until(lease.session_id, "effect.uncertain")
    assert "gave no answer" in event["payload"]["message"]


async def test_an_uncertain_action_is_settled_by_the_outcome_its_endpoint_brings_later(
    core: CoreClient, actions: Endpoint
) -> None:
    actions.script = actions.answer(500)
    harness, lease = await leased(core, actions)
    call = lease.call("lookup", "c1")
    await lease.intent(call)
    await core.until(lease.session_id, "effect.uncertain")
    await lease.output("turn.waiting", status="waiting", effectIds=[call["effectId"]])
    path = f"/v1/sessions/{lease.session_id}/effects/{call['effectId']}/outcome"
    assert (await core.post(path, {"value": 7})).status == 200
    again = await harness.lease()
    assert again.start["outcomes"][0]["outcome"] == {"value": 7}


async def test_a_session_with_another_uncertain_effect_stays_uncertain(
    core: CoreClient, actions: Endpoint
) -> None:
    actions.script = actions.answer(202)
    _, lease = await leased(core, actions)
    action, call = lease.call("lookup", "c1"), lease.call("bash", "c2", "box")
    await lease.intent(action)
    await lease.intent(call)
    await lease.error(call)
    ids = [action["effectId"], call["effectId"]]
    await lease.output("turn.waiting", status="uncertain", effectIds=ids)
    path = f"/v1/sessions/{lease.session_id}/effects/{action['effectId']}/outcome"
    assert (await core.post(path, {"value": 7})).status == 200
    assert await core.status(lease.session_id) == "uncertain"


async def test_an_outcome_after_a_cancel_is_not_needed_any_more(core: CoreClient, actions: Endpoint) -> None:
    actions.script = actions.answer(202)
    _, lease, call = await waiting(core, actions)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    before = await core.log(lease.session_id)
    path = f"/v1/sessions/{lease.session_id}/effects/{call['effectId']}/outcome"
    answer = await core.post(path, {"value": 7})
    assert (answer.status, answer.code) == (409, "turn_over")
    assert await core.log(lease.session_id) == before


@pytest.mark.parametrize(
    ("effect_id", "body", "status"),
    [
        ("unknown", {"value": 1}, 404),
        ("{model}", {"value": 1}, 404),
        ("{action}", {"values": 1}, 400),
        ("{action}", {"value": 1, "statePatch": 2}, 400),
        ("{action}", [], 400),
    ],
)
async def test_an_outcome_names_an_action_and_has_a_value(
    core: CoreClient, actions: Endpoint, effect_id: str, body: Any, status: int
) -> None:
    actions.script = actions.answer(202)
    _, lease = await leased(core, actions)
    model = await lease.model("x")
    call = lease.call("lookup", "c1")
    await lease.intent(call)
    name = effect_id.format(model=model["effectId"], action=call["effectId"])
    answer = await core.post(f"/v1/sessions/{lease.session_id}/effects/{name}/outcome", body)
    assert answer.status == status


async def test_hooks_are_actions_and_a_refused_one_is_uncertain_instead_of_empty(
    core: CoreClient, actions: Endpoint
) -> None:
    hook = {"at": "before", "scope": "turn", "capabilityIds": ["rules"]}
    harness, lease = await leased(core, actions, HOOKED)
    actions.script = actions.answer(200, {"value": {"results": {"rules": {}}}})
    await lease.intent(lease.effect("hook", "before-turn", hook=hook, input={}))
    _, params = await harness.message()
    assert params["outcome"] == {"value": {"results": {"rules": {}}}}
    assert (await core.types(lease.session_id))[-1] == "hook.completed"
    actions.script = actions.answer(404)
    await lease.intent(lease.effect("hook", "before-step:1", hook=hook, input={}))
    await core.until(lease.session_id, "effect.uncertain")


async def test_a_new_url_of_the_agent_counts_from_the_next_action_on(
    core: CoreClient, actions: Endpoint
) -> None:
    harness, lease = await leased(core, actions)
    async with endpoint() as other:
        await core.agent(HELPER, actions={"url": other.url})
        await lease.intent(lease.call("lookup", "c1"))
        await harness.message()
        assert (len(actions.intents), len(other.intents)) == (0, 1)


async def test_many_actions_at_once_are_all_posted_once(core: CoreClient, actions: Endpoint) -> None:
    harness, lease = await leased(core, actions)
    calls = [lease.call("lookup", f"c{n}") for n in range(300)]
    for call in calls:
        harness.start("effect.intent", lease.ask_intent(call))
    async with asyncio.timeout(3 * BOUND_S):
        found = {(await harness.message())[1]["effectId"] for _ in calls}
    assert found == {call["effectId"] for call in calls}
    assert set(actions.posts.values()) == {1}


async def test_an_action_that_was_not_posted_before_a_stop_is_posted_at_the_next_start(
    tmp_path: Path, actions: Endpoint
) -> None:
    database = tmp_path / "core.db"
    async with running_core(database) as core:
        _, lease = await leased(core, actions)
        actions.script = actions.answer(200, {"value": 1}, held=True)
        for n in range(130):
            lease.harness.start("effect.intent", lease.ask_intent(lease.call("lookup", f"c{n}")))

        async def full() -> bool:
            return len(actions.posts) == MAX_POSTS_AT_ONCE

        await eventually(full, "every slot is taken")
        assert len(await core.effects(lease.session_id)) == 130
    posted = set(actions.posts)
    actions.script = actions.answer(202)
    actions.go_on.set()
    async with running_core(database) as core:
        effects = await core.effects(lease.session_id)
        uncertain = {e["effectId"] for e in effects.values() if e["status"] == "uncertain"}
        assert uncertain == posted
    assert set(actions.posts.values()) == {1}
    assert set(actions.posts) <= {e["effectId"] for e in effects.values()}
