"""The run loop with the real agent engine: what only both together show."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.factory import make_engine
from protocol.canonical import manifest_hash, request_hash
from tests.gateway.support import gateway, lease
from tests.gateway.virtual_time import virtual_time

MANIFEST: dict[str, Any] = {
    "manifestSchemaVersion": 4,
    "id": "clerk",
    "capabilities": [
        {
            "id": "desk",
            "type": "agent",
            "instructions": ["Be terse."],
            "tools": [{"name": "note", "inputSchema": {"type": "object"}}],
        }
    ],
}
MODEL = "t1:0:model:invocation_t1_0_1"
EXECUTE = {"status": "execute"}


def turn(text: str = "go", **changes: Any) -> dict[str, Any]:
    checkpoint = {
        "version": 1,
        "engineVersion": "hosted-3",
        "manifestHash": manifest_hash(MANIFEST),
        "sessionId": "s1",
        "turnId": "t1",
        "segment": 0,
        "input": text,
    }
    routing = {"rootManifest": MANIFEST}
    return lease(manifest=MANIFEST, checkpoint=checkpoint, routing=routing, **changes)


async def started(gw: Any, answer: dict[str, Any]) -> Any:
    core = await gw.core.connection()
    core.answer(await core.expect("lease"), answer)
    return core


@pytest.mark.spec("harness-api:10.14")
@virtual_time
async def test_a_model_intent_is_small_and_its_hash_covers_the_whole_prompt():
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, turn("x" * 500_000))
        intent = await core.expect("effect.intent")
        document = intent["p"]["effect"]
        assert "input" not in document
        assert max(len(text) for text in core.texts) < 1000
        core.answer(intent, EXECUTE)
        await core.expect("effect.outcome")
        (execution,) = gw.fake.executions
        call = execution.effect.model_call
        assert call is not None
        from protocol import jsjson

        whole = {**document, "input": jsjson.loads(call.text())}
        assert request_hash(whole) == intent["p"]["requestHash"]


async def recorded(gw: Any, request_hash_: str) -> Any:
    outcome = {"value": {"output": [{"type": "text", "text": "kept"}], "finishReason": "stop"}}
    outcomes = [{"effectId": MODEL, "requestHash": request_hash_, "outcome": outcome}]
    return await started(gw, turn(outcomes=outcomes))


@pytest.mark.spec("harness-api:10.13")
@virtual_time
async def test_a_recorded_outcome_with_the_same_hash_is_used_without_asking():
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, turn())
        intent = await core.expect("effect.intent")
        core.answer(intent, {"status": "uncertain"})
        core.answer(await core.expect("turn.waiting"), {})
        core = await recorded(gw, intent["p"]["requestHash"])
        output = await core.expect("turn.completed")
        assert output["p"]["output"] == "kept"
        assert core.methods() == ["effect.intent", "turn.waiting", "turn.completed"]


@pytest.mark.spec("harness-api:10.13")
@virtual_time
async def test_a_recorded_outcome_with_another_hash_fails_the_step_without_asking():
    async with gateway(make_engine=make_engine) as gw:
        core = await recorded(gw, "0" * 64)
        output = await core.expect("turn.failed")
        assert output["p"]["status"] == "failed"
        assert output["p"]["error"]["message"] == "Effect identity request drift"
        assert core.methods() == ["turn.failed"]


@pytest.mark.spec("harness-api:10.15")
@virtual_time
async def test_ownership_lost_on_a_value_fails_the_model_call_and_not_the_run():
    async with gateway(make_engine=make_engine) as gw:
        core = await started(gw, turn())
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.refuse(await core.expect("effect.outcome"), "ownership_lost", "Another owner")
        output = await core.expect("turn.failed")
        assert output["p"]["status"] == "failed"
        assert output["p"]["error"] == {"code": "model.failed", "message": "Another owner"}
        assert "thrown" not in output["p"]
