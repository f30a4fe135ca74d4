"""`effect.outcome`: values, errors, and what is recorded of each (harness-api 8.3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dev_core.support import HELPER, CoreClient, Lease, Refused


async def leased(core: CoreClient) -> Lease:
    await core.agent(HELPER)
    await core.say(await core.session("helper"))
    return await (await core.connect()).lease()


@pytest.mark.parametrize(
    ("value", "event"),
    [
        ({"output": [{"type": "text", "text": "x"}]}, "message.assistant"),
        ("x", "message.assistant"),
        (None, "message.assistant"),
        ({"kind": "failed", "code": "auth", "message": "no", "retryable": False}, "model.failed"),
    ],
)
async def test_a_models_value_is_recorded_whether_it_failed_or_not(
    core: CoreClient, value: Any, event: str
) -> None:
    lease = await leased(core)
    effect = lease.effect("model", "invocation_1")
    await lease.intent(effect)
    assert await lease.value(effect, value) == {"status": "completed", "outcome": {"value": value}}
    last = (await core.log(lease.session_id))[-1]
    assert last["type"] == event
    assert last["payload"] == {
        "effectId": effect["effectId"],
        "kind": "model",
        "outcome": {"value": value},
    }


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "completed", "output": {"b": 1, "10": 2, "9": 3}},
        {"kind": "failed", "code": "sandbox.not_found", "message": "x"},
        {"kind": "completed", "output": "café \ud800 😀 \u2028 \x00"},
        {"kind": "completed", "output": [1e21, 5e-324, 0.1, 9007199254740991]},
        "x" * 300_000,
    ],
)
async def test_a_tools_value_comes_back_as_it_was(core: CoreClient, value: Any) -> None:
    lease = await leased(core)
    effect = lease.call("bash", "c1", "box")
    await lease.intent(effect)
    assert await lease.value(effect, value) == {"status": "completed", "outcome": {"value": value}}
    last = (await core.log(lease.session_id))[-1]
    assert (last["type"], last["payload"]["outcome"]) == ("tool.completed", {"value": value})
    await lease.harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    again = await lease.harness.lease()
    assert again.start["outcomes"][0]["outcome"] == {"value": value}


async def test_a_value_for_an_effect_that_was_never_asked_for_is_invalid(core: CoreClient) -> None:
    lease = await leased(core)
    with pytest.raises(Refused, match="invalid"):
        await lease.value(lease.effect("model", "never"), 1)


async def test_the_first_value_stays(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.effect("model", "invocation_1")
    await lease.intent(effect)
    await lease.value(effect, "first")
    assert (await lease.value(effect, "second"))["outcome"] == {"value": "first"}
    assert (await core.types(lease.session_id)).count("message.assistant") == 1
    assert await lease.error(effect) == {"status": "uncertain"}
    assert (await core.effects(lease.session_id))["model:invocation_1"]["status"] == "completed"


async def test_an_error_makes_the_effect_uncertain_for_good(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.call("bash", "c1", "box")
    await lease.intent(effect)
    assert await lease.error(effect, "the service \ud800 went away") == {"status": "uncertain"}
    event = (await core.log(lease.session_id))[-1]
    assert event["type"] == "effect.uncertain"
    assert event["payload"]["message"] == "the service ? went away"
    with pytest.raises(Refused, match="invalid"):
        await lease.value(effect, "late")
    assert await lease.error(effect, "again") == {"status": "uncertain"}
    assert (await core.effects(lease.session_id))["tool:c1"]["error"] == "the service ? went away"


async def test_an_error_about_an_unknown_effect_is_answered_uncertain(core: CoreClient) -> None:
    lease = await leased(core)
    assert await lease.error(lease.effect("model", "never")) == {"status": "uncertain"}
    assert await core.effects(lease.session_id) == {}
    odd = {"runId": lease.id, "effectId": "\ud800", "error": "x"}
    assert await lease.harness.ask("effect.outcome", odd) == {"status": "uncertain"}
    with pytest.raises(Refused, match="invalid"):
        await lease.harness.ask("effect.outcome", {"runId": lease.id, "effectId": "\ud800", "value": 1})


async def test_a_value_is_no_answer_to_what_core_does_itself(core: CoreClient) -> None:
    await core.agent(HELPER, actions={"url": "http://127.0.0.1:9/never"})
    await core.say(await core.session("helper"))
    lease = await (await core.connect()).lease()
    effect = lease.call("lookup", "c1")
    assert await lease.intent(effect) == {"status": "pending"}
    with pytest.raises(Refused, match="invalid"):
        await lease.value(effect, 1)


@pytest.mark.spec("harness-api:10.15")
@pytest.mark.parametrize("next_turn", [False, True])
async def test_after_a_cancel_a_value_is_refused_and_an_error_leaves_no_event(
    core: CoreClient, next_turn: bool
) -> None:
    lease = await leased(core)
    effect = lease.call("bash", "c1", "box")
    await lease.intent(effect)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    if next_turn:
        await core.say(lease.session_id, "next")
    with pytest.raises(Refused, match="turn_cancelled"):
        await lease.value(effect, 1)
    assert await lease.error(effect) == {"status": "uncertain"}
    assert "effect.uncertain" not in await core.types(lease.session_id)
    assert (await core.effects(lease.session_id))["tool:c1"]["status"] == "uncertain"
