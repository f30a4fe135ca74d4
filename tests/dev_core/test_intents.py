"""`effect.intent`: every answer and every refusal of harness-api 8.3 and 8.6."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.canonical import request_hash
from tests.dev_core.support import (
    BOUND_S,
    CONNECTED,
    HELPER,
    PLAIN,
    SANDBOX_TOOLS,
    SNAPSHOT,
    CoreClient,
    Lease,
    Refused,
    tool,
)

CHILD = {
    "manifestSchemaVersion": 4,
    "id": "scout",
    "description": "Finds facts.",
    "capabilities": [
        {"id": "box", "type": "agent", "sandbox": {}, "tools": [tool(name) for name in SANDBOX_TOOLS]}
    ],
}
DELEGATE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "description": "A complete, self-contained task. The agent sees nothing else.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}
BOSS = {
    "manifestSchemaVersion": 4,
    "id": "boss",
    "capabilities": [
        {
            "id": "team",
            "type": "agent",
            "tools": [
                {"name": "scout", "description": "Finds facts.", "inputSchema": DELEGATE, "agent": CHILD},
            ],
        }
    ],
}
HOOKED = {
    "manifestSchemaVersion": 4,
    "id": "hooked",
    "capabilities": [{"id": "rules", "type": "agent", "hooks": [{"at": "before", "scope": "turn"}]}],
}


async def leased(core: CoreClient, manifest: dict[str, Any] = HELPER) -> Lease:
    await core.agent(manifest)
    await core.say(await core.session(manifest["id"]))
    return await (await core.connect()).lease()


async def refused(lease: Lease, effect: dict[str, Any], hash_: str | None = None) -> str:
    with pytest.raises(Refused) as caught:
        await lease.intent(effect, hash_)
    return caught.value.code


@pytest.mark.spec("harness-api:10.14")
async def test_a_model_call_is_executed_and_its_input_must_not_cross(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.effect("model", "invocation_1")
    assert await refused(lease, {**effect, "input": {"prompt": []}}) == "invalid"
    assert await refused(lease, {**effect, "input": None}) == "invalid"
    # A model's hash covers the prompt, which core never sees.
    assert await lease.intent(effect, "a" * 64) == {"status": "execute"}


@pytest.mark.parametrize("name", SANDBOX_TOOLS)
async def test_the_six_tools_of_a_capability_with_a_sandbox_are_executed(core: CoreClient, name: str) -> None:
    lease = await leased(core)
    assert await lease.intent(lease.call(name, "c1", "box")) == {"status": "execute"}


async def test_an_mcp_tool_of_the_snapshot_is_executed_and_others_are_unknown(core: CoreClient) -> None:
    lease = await leased(core)
    call = lease.call("docs__search", "c1", "docs")
    assert await refused(lease, call) == "invalid"
    await lease.harness.ask(
        "session.mcp", {"runId": lease.id, "snapshot": SNAPSHOT, "diagnostics": [CONNECTED]}
    )
    later = lease.call("docs__search", "c2", "docs")
    assert await lease.intent(later) == {"status": "execute"}
    assert await refused(lease, lease.call("docs__search", "c3", "desk")) == "invalid"
    assert await refused(lease, lease.call("bash", "c4", "desk")) == "invalid"


async def test_a_childs_sandbox_tool_is_executed_and_the_parents_has_none(core: CoreClient) -> None:
    lease = await leased(core, BOSS)
    agent = {"id": "scout", "path": "boss/scout", "delegationId": "d1"}
    assert await lease.intent(lease.call("bash", "d1/c1", "box", agent=agent)) == {"status": "execute"}
    assert await refused(lease, lease.call("bash", "c2", "box")) == "invalid"
    stranger = {"id": "other", "path": "boss/other"}
    assert await refused(lease, lease.call("bash", "c3", "box", agent=stranger)) == "invalid"


async def test_a_tool_without_an_endpoint_is_answered_with_a_failure_that_says_so(core: CoreClient) -> None:
    lease = await leased(core)
    answer = await lease.intent(lease.call("lookup", "c1"))
    assert answer["status"] == "completed"
    value = answer["outcome"]["value"]
    assert (value["kind"], value["code"]) == ("failed", "endpoint.missing")
    assert "actions.url" in value["message"]
    effect = (await core.effects(lease.session_id))["tool:c1"]
    assert (effect["runner"], effect["status"]) == ("core", "completed")
    assert "tool.completed" in await core.types(lease.session_id)


async def test_a_hook_without_an_endpoint_is_refused_rather_than_passed(core: CoreClient) -> None:
    lease = await leased(core, HOOKED)
    hook = {"at": "before", "scope": "turn", "capabilityIds": ["rules"]}
    effect = lease.effect("hook", "before-turn", hook=hook, input={"messages": []})
    with pytest.raises(Refused, match=r"actions\.url"):
        await lease.intent(effect)


@pytest.mark.spec("harness-api:10.34")
async def test_delegation_markers_are_completed_by_core_and_hashed_without_their_context(
    core: CoreClient,
) -> None:
    lease = await leased(core, BOSS)
    agent = {"id": "scout", "path": "boss/scout", "delegationId": "d1"}
    started = lease.effect("delegation", "d1:started", agent=agent, input={"task": "look"})
    settled = lease.effect("delegation", "d1:settled", agent=agent, input={"status": "completed"})
    null = {"status": "completed", "outcome": {"value": None}}
    assert await lease.intent(started, request_hash({**started, "context": {"x": 1}})) == null
    assert await lease.intent(settled) == null
    types = await core.types(lease.session_id)
    assert types[-2:] == ["delegation.started", "delegation.completed"]


@pytest.mark.parametrize("kind", ["agent", "fn", "verify"])
async def test_kinds_that_are_not_built_are_refused_by_name(core: CoreClient, kind: str) -> None:
    lease = await leased(core)
    with pytest.raises(Refused, match=kind):
        await lease.intent(lease.effect(kind, "x", input={}))


@pytest.mark.parametrize(
    "change",
    [
        {"sessionId": "other"},
        {"turnId": "other"},
        {"agentId": "other"},
        {"manifestHash": "other"},
        {"effectId": "elsewhere:0:tool:c1"},
        {"toolName": "unheard-of"},
        {"capabilityId": "unheard-of"},
    ],
)
async def test_an_effect_that_is_not_the_runs_is_invalid(core: CoreClient, change: dict[str, str]) -> None:
    lease = await leased(core)
    assert await refused(lease, {**lease.call("lookup", "c1"), **change}) == "invalid"
    assert await core.effects(lease.session_id) == {}


@pytest.mark.parametrize("suffix", ["tool:c\n1", "tool:é", "tool:c 1"])
async def test_an_effect_id_that_no_header_can_carry_is_invalid(core: CoreClient, suffix: str) -> None:
    lease = await leased(core)
    effect = {**lease.call("lookup", "c1"), "effectId": lease.prefix + suffix}
    assert await refused(lease, effect) == "invalid"


async def test_a_tool_without_its_names_is_invalid(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.call("lookup", "c1")
    del effect["toolName"]
    assert await refused(lease, effect) == "invalid"
    assert await refused(lease, lease.effect("hook", "x", input={})) == "invalid"


async def test_a_hash_that_is_not_the_effects_is_invalid(core: CoreClient) -> None:
    lease = await leased(core)
    assert await refused(lease, lease.call("bash", "c1", "box"), "0" * 64) == "invalid"
    # Numbers that JavaScript prints in its own way are hashed in its way.
    odd = {
        **lease.call("bash", "c2", "box"),
        "input": {"b": [1e21, -0.0, 1e400, 5e-324, 2**60], "2": 1, "1": 2},
    }
    assert await lease.intent(odd) == {"status": "execute"}


@pytest.mark.spec("harness-api:10.13")
async def test_the_same_effect_with_another_request_is_drift(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.call("bash", "c1", "box")
    await lease.intent(effect)
    await lease.harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    again = await lease.harness.lease()
    changed = {**effect, "input": {"command": "rm"}}
    assert await refused(again, changed) == "effect_drift"


async def test_an_effect_is_asked_about_once_in_a_run_and_again_in_the_next(core: CoreClient) -> None:
    lease = await leased(core)
    effect = lease.call("bash", "c1", "box")
    await lease.intent(effect)
    assert await refused(lease, effect) == "invalid"
    await lease.value(effect, 7)
    await lease.harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    again = await lease.harness.lease()
    assert await again.intent(effect) == {"status": "completed", "outcome": {"value": 7}}


async def test_a_call_that_an_earlier_run_started_is_uncertain_after_a_release(core: CoreClient) -> None:
    lease = await leased(core)
    call, model = lease.call("bash", "c1", "box"), lease.effect("model", "invocation_1")
    await lease.intent(call)
    await lease.intent(model)
    await lease.harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    again = await lease.harness.lease()
    assert await again.intent(call) == {"status": "uncertain"}
    assert await again.intent(model) == {"status": "execute", "rejoin": True}
    assert "effect.uncertain" in await core.types(lease.session_id)


async def test_intents_of_one_run_are_served_side_by_side_and_in_order(core: CoreClient) -> None:
    lease = await leased(core)
    calls = [lease.call("bash", f"c{n}", "box") for n in range(50)]
    answers = [lease.harness.start("effect.intent", lease.ask_intent(call))[1] for call in calls]
    async with asyncio.timeout(BOUND_S):
        assert await asyncio.gather(*answers) == [{"status": "execute"}] * 50
    assert list(await core.effects(lease.session_id)) == [f"tool:c{n}" for n in range(50)]


async def test_after_a_cancel_intents_are_refused(core: CoreClient) -> None:
    lease = await leased(core, PLAIN)
    await core.post(f"/v1/sessions/{lease.session_id}/cancel")
    assert await refused(lease, lease.effect("model", "invocation_1")) == "turn_cancelled"
    await core.say(lease.session_id, "next")
    assert await refused(lease, lease.effect("model", "invocation_2")) == "turn_cancelled"
