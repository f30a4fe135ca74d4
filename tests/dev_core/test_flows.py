"""Flows in the development core: linked sessions, functions, and what a person sees of them (flow-engine 14.1)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.canonical import manifest_hash
from tests.dev_core.endpoint import Endpoint, endpoint
from tests.dev_core.flow_player import FN, FlowHarness, agent, says_input, workflow
from tests.dev_core.support import CoreClient, Lease, Refused, eventually, running_core
from tests.engine.support import agent_of, capability, delegate


@pytest.fixture
async def actions() -> AsyncIterator[Endpoint]:
    async with endpoint() as made:
        yield made


async def begin(
    core: CoreClient, manifest: dict[str, Any], message: Any = None, actions: Endpoint | None = None
) -> str:
    """A session of the workflow with a turn; a message is text or a body."""
    more = {} if actions is None else {"actions": {"url": actions.url}}
    await core.agent(manifest, **more)
    session_id = await core.session(manifest["id"])
    body = message if isinstance(message, dict) else {"text": message or "go"}
    answer = await core.post(f"/v1/sessions/{session_id}/messages", body)
    assert answer.status == 202, answer
    return session_id


async def ended(core: CoreClient, session_id: str, *statuses: str) -> dict[str, Any]:
    """The session once it has one of the statuses."""
    wanted = statuses or ("completed", "failed", "cancelled")

    async def check() -> dict[str, Any] | None:
        view = await core.view(session_id)
        return view if view["status"] in wanted else None

    return dict(await eventually(check, f"the session is {wanted}"))


async def result(core: CoreClient, session_id: str) -> Any:
    return (await ended(core, session_id))["lastTurn"]["result"]


async def linked(core: CoreClient, session_id: str) -> dict[str, dict[str, Any]]:
    """The sessions linked to one, by id."""
    answer = await core.get(f"/v1/sessions?parentId={session_id}")
    return {one["id"]: one for one in answer.body["sessions"]}


def linked_id(*parts: str) -> str:
    return "wf_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


PAIR = workflow({"chain": [{"agent": "a"}, {"agent": "b"}]}, "a", "b")


async def test_a_chain_of_agents_runs_in_linked_sessions(core: CoreClient) -> None:
    session_id = await begin(core, PAIR, "hello")
    async with FlowHarness(await core.connect()) as harness:
        assert await result(core, session_id) == {"output": "b: a: hello"}
    first = harness.flows()[0].start
    assert first["checkpoint"] == {
        "version": 1,
        "engineVersion": "flow-2",
        "manifestHash": manifest_hash(PAIR),
        "sessionId": session_id,
        "turnId": first["checkpoint"]["turnId"],
        "segment": 0,
        "input": "hello",
    }
    assert "sessionTools" not in first
    assert first["transcript"] == {"cursor": -1}
    assert first["options"]["flowLimits"] == {
        "maxConcurrency": 8,
        "maxMapItems": 1000,
        "maxLoopIterations": 100,
    }
    assert "yieldAfter" not in first["options"]
    found = await linked(core, session_id)
    assert {one: found[one]["agentId"] for one in found} == {
        linked_id(session_id, "a"): "a",
        linked_id(session_id, "b"): "b",
    }
    assert {one["parentId"] for one in found.values()} == {session_id}
    effects = await core.effects(session_id)
    assert effects["flow:a:agent:-"]["runner"] == "linked"
    assert effects["flow:a:agent:-"]["outcome"] == {
        "value": {"__nylorunAgentTurn": 1, "output": "a: hello", "agent": agent("a")}
    }
    # Linked sessions are nobody's own: the list of sessions leaves them out.
    answer = await core.get("/v1/sessions")
    assert [one["id"] for one in answer.body["sessions"]] == [session_id]
    assert answer.body["sessions"][0]["kind"] == "workflow"


async def test_the_log_and_the_items_tell_the_stages(core: CoreClient) -> None:
    session_id = await begin(core, PAIR, {"data": {"q": 1}})
    async with FlowHarness(await core.connect()):
        await ended(core, session_id)
    types = [kind for kind in await core.types(session_id) if kind not in ("run.started", "turn.waiting")]
    assert types == [
        "turn.started",
        "agent.started",
        "agent.completed",
        "agent.started",
        "agent.completed",
        "turn.completed",
    ]
    log = await core.log(session_id)
    started = next(event["payload"] for event in log if event["type"] == "agent.started")
    assert started["sessionId"] == linked_id(session_id, "a")
    assert (started["path"], started["iterations"], started["agentId"]) == ("a", "-", "a")
    items = (await core.get(f"/v1/sessions/{session_id}/items")).body["items"]
    assert [item["type"] for item in items] == ["message", "stage_result", "stage_result", "completed"]
    assert items[0]["content"] == [{"type": "json", "value": {"q": 1}}]
    # An agent is told what is not text as JSON.
    first = await core.get(f"/v1/sessions/{linked_id(session_id, 'a')}/items")
    assert first.body["items"][0]["content"] == [{"type": "text", "text": '{"q":1}'}]


async def test_functions_tools_and_verifiers_are_posted_as_they_were_asked_for(
    core: CoreClient, actions: Endpoint
) -> None:
    root = {
        "chain": [
            {
                "map": {"each": {"loop": {"run": {"agent": "w"}, "verify": FN, "max": 2}}},
                "input": FN,
                "id": "m",
            },
            {"tool": {"name": "send"}},
        ]
    }
    answers = {
        "m:input": ["x", "y"],
        "@0.each:verify": {"pass": True},
        "send": {"kind": "completed", "output": "sent"},
    }

    async def script(intent: dict[str, Any]) -> Any:
        return await actions.answer(200, {"value": answers[intent["key"]]})(intent)

    actions.script = script
    session_id = await begin(core, workflow(root, "w"), "in", actions)
    async with FlowHarness(await core.connect()):
        assert await result(core, session_id) == {"output": "sent"}
    assert [
        (one["kind"], one["key"], one["path"], one["context"].get("role")) for one in actions.intents
    ] == [
        ("fn", "m:input", "m:input", "input"),
        ("verify", "@0.each:verify", "@0.each[0]:verify", "verify"),
        ("verify", "@0.each:verify", "@0.each[1]:verify", "verify"),
        ("tool", "send", "send", None),
    ]
    assert actions.intents[-1]["input"] == ["w: x", "w: y"]
    assert actions.intents[-1]["context"] == {"toolName": "send"}
    assert all(count == 1 for count in actions.posts.values())
    completed = [kind for kind in await core.types(session_id) if kind.endswith(".completed")]
    assert completed[0] == "function.completed"
    assert completed.count("verify.completed") == completed.count("agent.completed") == 2
    assert completed[-2:] == ["tool.completed", "turn.completed"]


FUNCTION = workflow({"agent": "a", "input": FN}, "a")
TOOL = workflow({"tool": {"name": "send"}})
QUICK = {"repeat_pauses_s": (0.01, 0.01, 0.01)}


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_function_whose_answer_is_lost_is_called_again_with_its_key(
    actions: Endpoint, lost: int
) -> None:
    async def script(intent: dict[str, Any]) -> Any:
        is_lost = actions.posts[intent["effectId"]] <= lost
        return await actions.answer(500 if is_lost else 200, {"value": "shaped"})(intent)

    actions.script = script
    async with running_core(**QUICK) as core:
        session_id = await begin(core, FUNCTION, "in", actions)
        async with FlowHarness(await core.connect()):
            assert await result(core, session_id) == {"output": "a: shaped"}
        (effect,) = [one for name, one in (await core.effects(session_id)).items() if ":fn:" in name]
    assert list(actions.posts.values()) == [lost + 1]
    assert effect["attempts"] == lost + 1


async def test_a_function_whose_answers_are_all_lost_fails(actions: Endpoint) -> None:
    actions.script = actions.answer(500)
    async with running_core(**QUICK) as core:
        session_id = await begin(core, FUNCTION, "in", actions)
        async with FlowHarness(await core.connect()):
            error = (await result(core, session_id))["error"]
    assert (error["code"], error["path"]) == ("fn.failed", "a:input")
    assert "4 times" in error["message"]
    assert list(actions.posts.values()) == [4]


async def test_a_function_that_is_refused_is_not_called_again(core: CoreClient, actions: Endpoint) -> None:
    actions.script = actions.answer(404, {"error": {"message": "no such function"}})
    session_id = await begin(core, FUNCTION, "in", actions)
    async with FlowHarness(await core.connect()):
        error = (await result(core, session_id))["error"]
    assert error["code"] == "endpoint.rejected"
    assert "no such function" in error["message"]
    assert list(actions.posts.values()) == [1]


async def test_a_tool_whose_answer_is_lost_is_uncertain_and_not_called_again(actions: Endpoint) -> None:
    actions.script = actions.answer(500)
    async with running_core(**QUICK) as core:
        session_id = await begin(core, TOOL, "in", actions)
        async with FlowHarness(await core.connect()):
            await ended(core, session_id, "uncertain")
    assert list(actions.posts.values()) == [1]


async def test_an_answer_too_deep_for_a_lease_counts_as_lost(actions: Endpoint) -> None:
    actions.script = actions.answer(200, b'{"value":' + b"[" * 870 + b"]" * 870 + b"}")
    async with running_core(**QUICK) as core:
        session_id = await begin(core, TOOL, "in", actions)
        async with FlowHarness(await core.connect()):
            await ended(core, session_id, "uncertain")
    assert list(actions.posts.values()) == [1]


async def test_data_as_deep_as_it_may_be_runs_and_deeper_data_is_refused(core: CoreClient) -> None:
    def data(levels: int) -> Any:
        return json.loads("[" * levels + "]" * levels)

    session_id = await begin(core, PAIR, {"data": data(869)})
    async with FlowHarness(await core.connect()):
        assert "output" in await result(core, session_id)
    answer = await core.post(f"/v1/sessions/{session_id}/messages", {"data": data(870)})
    assert (answer.status, answer.body["error"]["code"]) == (400, "invalid")
    assert "870 levels" in answer.body["error"]["message"]


@pytest.mark.parametrize("manifest", [FUNCTION, TOOL])
async def test_without_an_endpoint_functions_and_tools_say_so(
    core: CoreClient, manifest: dict[str, Any]
) -> None:
    session_id = await begin(core, manifest)
    async with FlowHarness(await core.connect()):
        error = (await result(core, session_id))["error"]
    assert error["code"] == "endpoint.missing"
    assert "actions.url" in error["message"]


async def test_a_function_may_answer_later(core: CoreClient, actions: Endpoint) -> None:
    actions.script = actions.answer(202)
    session_id = await begin(core, FUNCTION, "in", actions)
    async with FlowHarness(await core.connect()):
        await ended(core, session_id, "waiting")
        await actions.asked.wait()
        effect_id = actions.intents[0]["effectId"]
        path = f"/v1/sessions/{session_id}/effects/{effect_id}/outcome"
        answer = await core.post(path, {"value": "later"})
        assert answer.body["result"] == "completed"
        assert await result(core, session_id) == {"output": "a: later"}


async def test_stages_may_be_named_in_any_script(core: CoreClient, actions: Endpoint) -> None:
    async def script(intent: dict[str, Any]) -> Any:
        return await actions.answer(200, {"value": intent["key"]})(intent)

    actions.script = script
    manifest = workflow({"agent": "ä", "id": "é 😀", "input": FN}, "ä")
    session_id = await begin(core, manifest, "in", actions)
    async with FlowHarness(await core.connect()):
        assert await result(core, session_id) == {"output": "ä: é 😀:input"}
    ((key, count),) = actions.posts.items()
    assert count == 1
    assert key.endswith(":flow:%C3%A9%20%F0%9F%98%80:input:fn:-")


# Many at once


MAP = workflow({"map": {"each": {"agent": "w"}}}, "w")


async def test_no_more_linked_turns_run_at_once_than_may() -> None:
    release = asyncio.Event()

    async def slow(lease: Lease) -> Any:
        await release.wait()
        return await says_input(lease)

    async with running_core(flow_concurrency=2) as core:
        session_id = await begin(core, MAP, {"data": [str(n) for n in range(7)]})
        async with FlowHarness(await core.connect(), slow) as harness:

            async def two_run() -> bool:
                return harness.running == 2

            await eventually(two_run, "two turns run")
            view = await ended(core, session_id, "waiting")
            assert [one["status"] for one in view["linked"]] == ["running", "running"]
            release.set()
            assert await result(core, session_id) == {"output": [f"w: {n}" for n in range(7)]}
        assert harness.most_running == 2
        assert len(await linked(core, session_id)) == 7


async def test_a_turn_that_goes_on_finds_the_same_linked_sessions(core: CoreClient) -> None:
    session_id = await begin(core, PAIR, "one")
    async with FlowHarness(await core.connect()) as harness:
        await ended(core, session_id)
        assert await core.say(session_id, "two")
        await eventually(lambda: _is_running(core, session_id, False), "the second turn ended")
        assert (await core.view(session_id))["lastTurn"]["result"] == {"output": "b: a: two"}
    assert len(await linked(core, session_id)) == 2
    again = [lease for lease in harness.leased if lease.session_id == linked_id(session_id, "a")]
    assert [lease.start["checkpoint"]["input"] for lease in again] == ["one", "two"]
    assert again[1].start["checkpoint"]["state"]["executionId"] == again[1].session_id


async def _is_running(core: CoreClient, session_id: str, running: bool) -> bool:
    view = await core.view(session_id)
    return (view["activeTurnId"] is not None) is running


# Failures, cancels and pauses of linked turns


async def test_a_failed_agent_fails_the_flow_with_its_reason(core: CoreClient) -> None:
    async def fails(lease: Lease) -> Any:
        error = {"code": "model.auth", "message": "no key"}
        return await lease.output("turn.failed", status="failed", error=error)

    session_id = await begin(core, PAIR)
    async with FlowHarness(await core.connect(), fails):
        assert (await result(core, session_id))["error"] == {
            "code": "agent.failed",
            "message": "model.auth: no key",
            "path": "a",
        }


async def held(lease: Lease) -> Any:
    """An agent that works until it is cancelled."""
    await lease.model({"output": []})
    await asyncio.get_running_loop().create_future()


async def test_a_cancelled_flow_cancels_its_linked_turns(core: CoreClient) -> None:
    session_id = await begin(core, MAP, {"data": ["x", "y"]})
    harness = await core.connect()
    async with FlowHarness(harness, held) as flows:

        async def both_run() -> bool:
            return flows.running == 2

        await eventually(both_run, "both turns run")
        assert (await core.post(f"/v1/sessions/{session_id}/cancel")).body["status"] == "cancelled"
        told = {(await harness.message())[1]["runId"] for _ in range(2)}
        assert told == {lease.id for lease in flows.leased if lease.start["engine"] == "agent"}
    assert {one["status"] for one in (await linked(core, session_id)).values()} == {"cancelled"}


async def test_a_linked_turn_that_a_person_cancels_fails_the_flow(core: CoreClient) -> None:
    session_id = await begin(core, PAIR)
    async with FlowHarness(await core.connect(), held) as flows:

        async def runs() -> bool:
            return flows.running == 1

        await eventually(runs, "the agent runs")
        await core.post(f"/v1/sessions/{linked_id(session_id, 'a')}/cancel")
        assert (await result(core, session_id))["error"]["code"] == "agent.cancelled"


async def test_a_failing_branch_cancels_its_siblings_turn(core: CoreClient, actions: Endpoint) -> None:
    actions.script = actions.answer(200, {"value": {"kind": "denied", "reason": "no"}}, held=True)
    root = {"parallel": {"a": {"agent": "w"}, "b": {"tool": {"name": "send"}}}}
    session_id = await begin(core, workflow(root, "w"), "in", actions)
    async with FlowHarness(await core.connect(), held) as flows:

        async def runs() -> bool:
            return flows.running == 1

        await eventually(runs, "the agent runs")
        actions.go_on.set()
        error = (await result(core, session_id))["error"]
        assert error == {"code": "tool.denied", "message": "no", "path": "send"}
        assert (await core.view(linked_id(session_id, "w")))["status"] == "cancelled"


PENDING = [
    {
        "callId": "c1",
        "toolName": "pay",
        "args": {"n": 1},
        "status": "interaction",
        "interaction": {"id": "i1", "kind": "approval", "prompt": "Pay?"},
    }
]


async def asks_first(lease: Lease) -> Any:
    """An agent that asks a person, and says what it was answered."""
    given = lease.start["checkpoint"]["input"]
    if isinstance(given, dict):
        return await lease.complete(output=f"approved: {given['approved']}")
    return await lease.output(
        "turn.paused", status="paused", state=lease.state("paused"), transcript=[], pending=PENDING
    )


async def test_a_person_answers_what_a_linked_session_asks_at_the_workflow(core: CoreClient) -> None:
    session_id = await begin(core, workflow({"agent": "a"}, "a"))
    async with FlowHarness(await core.connect(), asks_first):
        view = await ended(core, session_id, "paused")
        assert [(one["id"], one["sessionId"]) for one in view["interactions"]] == [
            ("i1", linked_id(session_id, "a"))
        ]
        assert view["linked"][0]["status"] == "paused"
        told = await core.until(session_id, "agent.paused")
        assert told["payload"]["sessionId"] == linked_id(session_id, "a")
        body = {"interactionId": "i1", "approved": True}
        answer = await core.post(f"/v1/sessions/{session_id}/approve", body)
        assert (answer.status, answer.body["sessionId"]) == (202, linked_id(session_id, "a"))
        assert await result(core, session_id) == {"output": "approved: True"}


async def test_an_unknown_interaction_of_a_workflow_is_refused(core: CoreClient) -> None:
    session_id = await begin(core, PAIR)
    body = {"interactionId": "i1", "approved": True}
    assert (await core.post(f"/v1/sessions/{session_id}/approve", body)).code == "not_paused"


# Loops


async def with_state(lease: Lease) -> Any:
    """An agent that keeps a state like the engine's."""
    checkpoint = lease.start["checkpoint"]
    state = lease.state(manifestHash=checkpoint["manifestHash"], agentId=lease.start["manifest"]["id"])
    output = f"{lease.start['manifest'].get('name')}: {checkpoint['input']}"
    return await lease.output("turn.completed", status="completed", state=state, transcript=[], output=output)


async def test_a_loop_may_change_its_agent_for_the_next_turn(core: CoreClient, actions: Endpoint) -> None:
    variant = agent("w", name="Wren", outputSchema={"type": "object"})

    async def script(intent: dict[str, Any]) -> Any:
        if intent["kind"] == "verify":
            value: Any = {"ok": True}
        elif intent["input"]["iteration"] == 1:
            value = {"retry": "again", "agent": variant}
        else:
            value = {"output": intent["input"]["output"]}
        return await actions.answer(200, {"value": value})(intent)

    actions.script = script
    manifest = workflow({"loop": {"run": {"agent": "w"}, "verify": FN, "decide": FN}}, "w")
    session_id = await begin(core, manifest, "first", actions)
    async with FlowHarness(await core.connect(), with_state) as harness:
        assert await result(core, session_id) == {"output": "Wren: again"}
    first, second = [lease.start for lease in harness.leased if lease.start["engine"] == "agent"]
    assert first["manifest"] == second["routing"]["rootManifest"] == agent("w")
    assert second["manifest"] == variant
    assert second["checkpoint"]["manifestHash"] == manifest_hash(variant)
    assert second["checkpoint"]["state"]["manifestHash"] == manifest_hash(variant)
    assert second["checkpoint"]["state"]["outputContract"] == {"type": "object"}
    effects = await core.effects(session_id)
    assert effects["flow:w:agent:2"]["outcome"]["value"]["agent"] == variant


async def test_a_manifest_that_is_none_fails_the_agent(core: CoreClient, actions: Endpoint) -> None:
    async def script(intent: dict[str, Any]) -> Any:
        value = {"retry": 1, "agent": {"id": "w"}} if intent["kind"] == "fn" else 1
        return await actions.answer(200, {"value": value})(intent)

    async def without_marker(lease: Lease) -> Any:
        return await lease.output("turn.completed", status="completed", state=lease.state(), transcript=[])

    actions.script = script
    inner = workflow({"agent": "w"}, "w", name="inner")
    root = {"loop": {"run": {"agent": "w"}, "verify": FN, "decide": FN}}
    session_id = await begin(core, workflow(root, "w", inner), "in", actions)
    async with FlowHarness(await core.connect(), without_marker):
        error = (await result(core, session_id))["error"]
    # The pin is what the first turn ran with, so the engine refuses it before the core could.
    assert error["code"] == "loop.invalid-agent"


async def test_a_verifier_has_a_session_of_its_own_in_every_iteration(core: CoreClient) -> None:
    async def judges(lease: Lease) -> Any:
        if lease.start["manifest"]["id"] == "v":
            passes = '"iteration":2' in lease.start["checkpoint"]["input"]
            return await lease.complete(output={"pass": passes, "feedback": "more"})
        return await says_input(lease)

    manifest = workflow({"loop": {"run": {"agent": "w"}, "verify": {"agent": "v"}, "max": 3}}, "w", "v")
    session_id = await begin(core, manifest, "in")
    async with FlowHarness(await core.connect(), judges) as harness:
        assert await result(core, session_id) == {"output": "w: more"}
    turn_id = harness.flows()[0].start["checkpoint"]["turnId"]
    assert set(await linked(core, session_id)) == {
        linked_id(session_id, "w"),
        linked_id(session_id, "v", "verify", turn_id, "1"),
        linked_id(session_id, "v", "verify", turn_id, "2"),
    }


# Version 1, and flows as tools


def registry_flow(name: str, root: Any) -> dict[str, Any]:
    return {"kind": "workflow", "workflowSchemaVersion": 1, "id": name, "root": root}


async def test_a_workflow_of_version_one_takes_its_agents_from_the_registry(
    core: CoreClient, actions: Endpoint
) -> None:
    await core.agent(agent("poet"))
    await core.agent(registry_flow("inner", {"tool": {"name": "t"}}), actions={"url": actions.url})
    root = {"chain": {"id": "c", "steps": [{"agent": "poet"}, {"agent": "inner"}]}}
    session_id = await begin(core, registry_flow("outer", root), "in")
    async with FlowHarness(await core.connect()) as harness:
        # A linked flow's outcome is its bare output.
        assert await result(core, session_id) == {"output": "done"}
    assert harness.flows()[0].start["checkpoint"]["engineVersion"] == "flow-1"
    effects = await core.effects(session_id)
    assert effects["flow:c/inner:agent:-"]["outcome"] == {"value": "done"}
    assert actions.intents[0]["input"] == "poet: in"


async def test_an_agent_that_is_not_in_the_registry_fails_the_flow(core: CoreClient) -> None:
    session_id = await begin(core, registry_flow("outer", {"agent": "nobody"}))
    async with FlowHarness(await core.connect()):
        error = (await result(core, session_id))["error"]
    assert error["code"] == "agent.failed"
    assert "'nobody'" in error["message"]


async def test_workflows_that_name_each_other_end(core: CoreClient) -> None:
    await core.agent(registry_flow("ping", {"agent": "pong"}))
    session_id = await begin(core, registry_flow("pong", {"agent": "ping"}))
    async with FlowHarness(await core.connect()):
        error = (await result(core, session_id))["error"]
    assert error["code"] == "agent.failed"
    assert "16 sessions deep" in error["message"]


async def test_an_agents_own_flow_runs_as_a_turn_of_a_linked_session(
    core: CoreClient, actions: Endpoint
) -> None:
    inner = {**workflow({"tool": {"name": "t"}}, name="inner"), "description": "Steps."}
    boss = agent_of(capability("team", delegate(inner)), id="boss")
    session_id = await begin(core, boss, "go", actions)
    harness = await core.connect()
    lease = await harness.lease()
    effect = lease.effect(
        "agent",
        "d1:flow",
        input={"agentId": "inner", "input": "look", "path": "boss/inner"},
        agent={"id": "inner", "path": "boss/inner", "delegationId": "d1"},
        context={"role": "delegate", "delegationId": "d1"},
    )
    assert await lease.intent(effect) == {"status": "pending"}
    await lease.output("turn.waiting", status="waiting", effectIds=[effect["effectId"]])
    turn_id = lease.start["checkpoint"]["turnId"]
    async with FlowHarness(harness, says_input) as flows:
        await actions.asked.wait()
        outcome = await eventually(lambda: _outcome(core, session_id, "agent:d1:flow"), "the flow's outcome")
        assert outcome == {"value": "done"}
    assert flows.flows()[0].session_id == linked_id(session_id, "boss/inner", "delegate", turn_id, "d1")
    assert actions.intents[0]["input"] == "look"


async def _outcome(core: CoreClient, session_id: str, name: str) -> Any:
    return (await core.effects(session_id))[name].get("outcome")


# What is refused


async def test_a_flow_takes_text_or_data_only(core: CoreClient) -> None:
    await core.agent(PAIR)
    session_id = await core.session("steps")
    for body in ({"content": [{"type": "text", "text": "x"}]}, {"text": "x", "metadata": {"a": 1}}):
        answer = await core.post(f"/v1/sessions/{session_id}/messages", body)
        assert (answer.status, answer.code) == (400, "invalid")
        assert "workflow" in answer.body["error"]["message"]
    assert (await core.post(f"/v1/sessions/{session_id}/messages", {"data": None})).status == 202


async def test_a_workflow_that_breaks_a_rule_is_not_put(core: CoreClient) -> None:
    answer = await core.put("/v1/agents/x", {"manifest": workflow({"agent": "gone"})})
    assert (answer.status, answer.code) == (400, "manifest_invalid")
    assert "root.agent" in answer.body["error"]["message"]
    deep: Any = {"tool": {"name": "t"}}
    for _ in range(200):
        deep = {"chain": [deep]}
    boss = agent_of(capability("team", delegate({**workflow(deep), "description": "Deep."})))
    for manifest in (workflow(deep), boss):
        answer = await core.put("/v1/agents/x", {"manifest": manifest})
        assert (answer.status, answer.code) == (400, "manifest_invalid")
        assert "200 deep" in answer.body["error"]["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "model"},
        {"kind": "hook"},
        {"path": ""},
        {"key": None},
        {"iterations": None},
        {"capabilityId": "c"},
        {"context": {}},
        {"kind": "agent", "input": "x"},
        {"kind": "agent", "input": {"agentId": "a"}},
        {"kind": "agent", "input": {"agentId": "a", "path": "a", "flow": "x"}},
        {"effectId": "other:0:flow:t:tool:-"},
    ],
)
async def test_what_no_flow_asks_for_is_refused(core: CoreClient, changes: dict[str, Any]) -> None:
    await begin(core, TOOL)
    harness = await core.connect()
    lease = await harness.lease()
    effect = {
        **lease.effect("tool", "x", path="t", key="t", iterations="-", input=1, context={"toolName": "t"}),
        **changes,
    }
    effect = {name: value for name, value in effect.items() if value is not None}
    with pytest.raises(Refused) as refused:
        await lease.intent(effect)
    assert refused.value.code == "invalid"
    assert await core.effects(lease.session_id) == {}


@pytest.mark.parametrize("kind", ["fn", "verify", "agent"])
async def test_what_only_flows_ask_for_is_refused_to_agents(core: CoreClient, kind: str) -> None:
    await core.agent()
    await core.say(await core.session())
    lease = await (await core.connect()).lease()
    with pytest.raises(Refused) as refused:
        await lease.intent(lease.effect(kind, "x", input={"agentId": "a", "path": "a"}))
    assert refused.value.code == "invalid"


@pytest.mark.parametrize(
    ("method", "members"),
    [
        ("turn.paused", {"status": "paused", "state": {"transcript": []}, "transcript": []}),
        ("checkpoint", {"status": "yielded", "state": {"transcript": []}, "transcript": []}),
        ("turn.completed", {"status": "completed", "state": {"transcript": []}, "output": 1}),
        ("turn.completed", {"status": "completed", "transcript": [], "output": 1}),
    ],
)
async def test_an_output_that_no_flow_has_fails_its_turn(
    core: CoreClient, method: str, members: dict[str, Any]
) -> None:
    session_id = await begin(core, PAIR)
    lease = await (await core.connect()).lease()
    with pytest.raises(Refused) as refused:
        await lease.output(method, **members)
    assert refused.value.code == "invalid"
    assert (await ended(core, session_id))["lastTurn"]["result"]["error"]["code"] == "output.invalid"


async def test_a_flow_may_ask_for_one_effect_again(core: CoreClient) -> None:
    manifest = workflow({"parallel": {"x": {"agent": "a"}, "y": {"agent": "a"}}}, "a")
    session_id = await begin(core, manifest, "in")
    async with FlowHarness(await core.connect()):
        assert await result(core, session_id) == {"output": {"x": "a: in", "y": "a: in"}}
    assert len(await core.effects(session_id)) == 1


# People and linked sessions


async def test_a_linked_turn_waits_for_a_persons_own_turn_there(core: CoreClient) -> None:
    session_id = await begin(core, PAIR, "one")
    own = asyncio.Event()

    async def slow_for_people(lease: Lease) -> Any:
        if lease.start["checkpoint"]["input"] == "mine":
            await own.wait()
        return await says_input(lease)

    async with FlowHarness(await core.connect(), slow_for_people):
        await ended(core, session_id)
        await core.say(linked_id(session_id, "a"), "mine")
        await core.say(session_id, "two")
        await ended(core, session_id, "waiting")
        assert "linked" not in await core.view(session_id)
        own.set()
        await eventually(lambda: _is_running(core, session_id, False), "the turn ended")
        assert (await core.view(session_id))["lastTurn"]["result"] == {"output": "b: a: two"}


async def test_a_deleted_workflow_session_takes_its_linked_ones_along(core: CoreClient) -> None:
    session_id = await begin(core, PAIR)
    async with FlowHarness(await core.connect()):
        await ended(core, session_id)
    assert (await core.call("DELETE", f"/v1/sessions/{session_id}")).status in (200, 204)
    assert await linked(core, session_id) == {}
    assert (await core.get(f"/v1/sessions/{linked_id(session_id, 'a')}")).status == 404


# Restarts


async def test_what_was_queued_begins_at_the_next_start(tmp_path: Path) -> None:
    database = tmp_path / "core.db"
    async with running_core(database, flow_concurrency=1) as core:
        session_id = await begin(core, MAP, {"data": ["x", "y", "z"]})
        async with FlowHarness(await core.connect(), held) as flows:

            async def runs() -> bool:
                return flows.running == 1

            await eventually(runs, "one turn runs")
    async with (
        running_core(database, flow_concurrency=3, lease_ms=200) as core,
        FlowHarness(await core.connect()),
    ):
        assert await result(core, session_id) == {"output": ["w: x", "w: y", "w: z"]}
