"""A whole turn: what a run starts from, what its events are, what people read afterwards."""

from __future__ import annotations

import pytest

from protocol.canonical import manifest_hash
from tests.dev_core.support import HELPER, PLAIN, CoreClient


async def test_a_turn_runs_from_message_to_answer(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    harness = await core.connect()
    turn_id = await core.say(session_id)
    lease = await harness.lease()
    await lease.model("Hello.")
    answer = await lease.complete({"kind": "input"}, {"kind": "final"}, output="Hello.")
    log = await core.log(session_id)
    assert [event["type"] for event in log] == [
        "turn.started",
        "run.started",
        "message.assistant",
        "transcript.updated",
        "turn.completed",
    ]
    assert answer == {"cursor": 4}
    assert log[2]["payload"]["outcome"] == {"value": "Hello."}
    assert log[4]["payload"] == {"output": "Hello."}
    assert {event["turnId"] for event in log} == {turn_id}
    assert await core.status(session_id) == "completed"


async def test_a_first_run_starts_from_the_message_and_the_pinned_manifest(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session(info={"user": "ana"})
    turn_id = await core.say(session_id, "go")
    lease = await (await core.connect()).lease()
    hash_ = manifest_hash(PLAIN)
    run = lease.result["run"]
    assert run.pop("token")
    assert run.pop("tokenExpiresAt")
    assert run == {"runId": lease.id, "sessionId": session_id, "turnId": turn_id, "epoch": 1}
    assert lease.start == {
        "type": "turn.start",
        "engine": "agent",
        "manifest": PLAIN,
        "checkpoint": {
            "version": 1,
            "engineVersion": "hosted-3",
            "manifestHash": hash_,
            "sessionId": session_id,
            "turnId": turn_id,
            "segment": 0,
            "input": "go",
            "info": {"user": "ana"},
        },
        "sessionTools": [],
        "outcomes": [],
        "transcript": {"cursor": -1},
        "options": {"yieldAfter": {"steps": 50, "ms": 1_200_000}, "fixtureModel": False, "holdMs": 0},
        "routing": {"rootManifest": PLAIN, "pluginRoots": {}, "sandbox": {"ownerId": session_id}},
    }


async def test_the_second_turn_starts_from_the_first_ones_state_and_transcript(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    harness = await core.connect()
    await core.say(session_id)
    first = await harness.lease()
    cursor = (await first.complete({"n": 1}, {"n": 2}))["cursor"]
    await core.say(session_id, "again")
    second = await harness.lease()
    assert second.start["checkpoint"]["state"] == first.state()
    assert second.start["transcript"] == {"cursor": cursor}
    assert second.result["run"]["epoch"] == 2
    read = await harness.ask("transcript.read", {"runId": second.id})
    assert read == {"cursor": cursor, "entries": [{"n": 1}, {"n": 2}]}


async def test_a_session_keeps_its_manifest_when_its_agent_is_replaced(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    await core.agent({**PLAIN, "description": "Newer."})
    await core.say(session_id)
    lease = await (await core.connect()).lease()
    assert lease.start["manifest"] == PLAIN
    assert lease.start["checkpoint"]["manifestHash"] == manifest_hash(PLAIN)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": "a", "metadata": {"k": 1}}, {"text": "a", "metadata": {"k": 1}}),
        # Empty is a message, too: the engine takes it (agent-engine 5).
        ({"text": ""}, ""),
        ({"content": []}, {"content": []}),
        ({"data": ""}, ""),
        ({"content": "a"}, "a"),
        ({"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "text", "text": "a"}]}),
        (
            {"content": [{"type": "media", "mediaType": "image/png", "reference": {"x": 1}}], "metadata": {}},
            {
                "content": [{"type": "media", "mediaType": "image/png", "reference": {"x": 1}}],
                "metadata": {},
            },
        ),
        ({"data": "text"}, "text"),
        ({"data": {"b": 1, "2": 2.0, "1": None}}, '{"1":null,"2":2,"b":1}'),
    ],
)
async def test_each_form_of_a_message_becomes_the_engines_input(
    core: CoreClient, body: object, expected: object
) -> None:
    await core.agent()
    session_id = await core.session()
    assert (await core.post(f"/v1/sessions/{session_id}/messages", body)).status == 202
    lease = await (await core.connect()).lease()
    assert lease.start["checkpoint"]["input"] == expected


async def test_items_show_the_conversation_also_of_a_turn_that_failed(core: CoreClient) -> None:
    await core.agent(HELPER)
    session_id = await core.session("helper")
    harness = await core.connect()
    turn_id = await core.say(session_id, "go")
    lease = await harness.lease()
    calls = [
        {"type": "tool-call", "id": "c1", "name": "read", "args": {"path": "a"}},
        {"type": "tool-call", "id": "c2", "name": "unknown", "args": {}},
    ]
    await lease.model({"output": [{"type": "reasoning", "text": "hm"}, *calls]})
    effect = lease.call("read", "c1", "box")
    await lease.intent(effect)
    await lease.value(effect, {"kind": "completed", "output": "text"})
    await lease.model({"output": [{"type": "text", "text": "Done."}]}, "invocation_2")
    unknown = {
        "callId": "c2",
        "toolName": "unknown",
        "kind": "failed",
        "code": "tool.unknown",
        "message": "?",
    }
    done = {"callId": "c1", "toolName": "read", "kind": "completed", "output": "text"}
    await lease.complete({"kind": "tool-results", "results": [done, unknown]})
    await core.say(session_id, "again")
    failed = await harness.lease()
    await failed.output("turn.failed", status="failed", error={"code": "model.auth", "message": "no key"})
    items = (await core.get(f"/v1/sessions/{session_id}/items")).body["items"]
    assert [(item["type"], item.get("role"), item.get("toolName")) for item in items] == [
        ("message", "user", None),
        ("reasoning", None, None),
        ("tool_call", None, "read"),
        ("tool_call", None, "unknown"),
        ("tool_result", None, "read"),
        ("message", "assistant", None),
        ("tool_result", None, "unknown"),
        ("completed", None, None),
        ("message", "user", None),
        ("failed", None, None),
    ]
    assert items[0] == {
        "seq": 1,
        "turnId": turn_id,
        "type": "message",
        "role": "user",
        "content": [{"type": "text", "text": "go"}],
    }
    assert items[-1]["error"] == {"code": "model.auth", "message": "no key"}
    page = await core.get(f"/v1/sessions/{session_id}/items?limit=2")
    rest = await core.get(f"/v1/sessions/{session_id}/items?after={page.body['after']}")
    assert page.body["items"] + rest.body["items"] == items


async def test_items_show_what_a_child_came_to_and_no_summaries(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    await core.say(session_id, "go")
    lease = await (await core.connect()).lease()
    about = {"trigger": "threshold", "tokensBefore": 900, "keptTokens": 1}
    context = {"invocationId": "compaction-step_1", "compaction": about}
    summary = lease.effect("model", "compaction-step_1") | {"context": context}
    await lease.intent(summary)
    await lease.value(summary, "Summary.")
    await lease.model({"output": [{"type": "tool-call", "id": "d1", "name": "scout", "args": {"task": "x"}}]})
    agent = {"id": "scout", "path": "plain/scout", "delegationId": "i1"}
    outcome = {"kind": "completed", "output": "found"}
    for what, told in (
        ("started", {"task": "x"}),
        ("settled", {"status": "completed", "outcome": outcome}),
    ):
        marker = lease.effect("delegation", f"i1:{what}", agent=agent, input=told)
        await lease.intent(marker | {"context": {"callId": "d1"}})
    result = {"callId": "d1", "toolName": "scout", **outcome}
    await lease.complete({"kind": "tool-results", "results": [result]})
    items = (await core.get(f"/v1/sessions/{session_id}/items")).body["items"]
    assert [item["type"] for item in items] == ["message", "tool_call", "tool_result", "completed"]
    assert (items[2]["callId"], items[2]["toolName"], items[2]["result"]) == ("d1", "scout", outcome)
    log = await core.log(session_id)
    assert next(e for e in log if e["type"] == "message.assistant")["payload"]["compaction"] == about


async def test_effects_say_who_ran_them_and_how_they_ended(core: CoreClient) -> None:
    await core.agent(HELPER)
    session_id = await core.session("helper")
    await core.say(session_id)
    lease = await (await core.connect()).lease()
    await lease.model("x")
    call = lease.call("bash", "c1", "box")
    await lease.intent(call)
    effects = await core.effects(session_id)
    assert {name: (e["runner"], e["status"]) for name, e in effects.items()} == {
        "model:invocation_1": ("model", "completed"),
        "tool:c1": ("sandbox", "invoking"),
    }
    assert effects["model:invocation_1"]["outcome"] == {"value": "x"}
    assert effects["model:invocation_1"]["durationMs"] >= 0
    assert effects["tool:c1"]["request"] == call
