"""Agents and flows used as tools (agent-engine 17)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import AbortedEffect, YieldAfter
from protocol.canonical import request_hash
from tests.engine.support import (
    CANCEL,
    Player,
    agent_of,
    call,
    calls,
    capability,
    checkpoint,
    delegate,
    following,
    json_of,
    start,
    text,
    tool,
)
from tests.vectors.segment_host import whole_effect

FIRST = "T1:0:delegation:invocation_T1_0_2"
CHILD = "T1:0:model:invocation_T1_0_2/invocation_T1_0_invocation_T1_0_2_"
CHILD_TOOL = "T1:0:tool:invocation_T1_0_2/invocation_T1_0_invocation_T1_0_2_"
NO_ASKING = (
    "Agents used as tools can't ask for input, approval or a wait yet; do this work on the parent agent."
)
FAILURE = {"kind": "failed", "code": "overloaded", "message": "busy", "retryable": True}


def scout(*capabilities: dict[str, Any], **members: Any) -> dict[str, Any]:
    """An agent that can be used as a tool."""
    own = capabilities or (capability("core", tool("find")),)
    return agent_of(*own, **({"id": "scout", "description": "Finds facts."} | members))


def boss(*children: dict[str, Any], **members: Any) -> dict[str, Any]:
    """An agent that has these as tools, beside one of its own."""
    return agent_of(capability("team", *map(delegate, children), tool("memo"), **members), capability("rack"))


FLOW = {
    "kind": "workflow",
    "workflowSchemaVersion": 2,
    "id": "pipeline",
    "description": "Runs.",
    "root": {"agent": "plain"},
    "agents": {"plain": {"manifestSchemaVersion": 4, "id": "plain", "capabilities": []}},
}
BOSS = boss(scout(), FLOW)


def ask(call_id: str, task: str = "look", to: str = "scout") -> dict[str, Any]:
    return call(call_id, to, task=task)


def delegated(manifest: dict[str, Any] = BOSS, **options: Any) -> Player:
    """A turn in which the child's first model call waits."""
    player = start(manifest, **options).model(calls(ask("d1")))
    return player.complete(f"{FIRST}:started", None)


def settled(player: Player) -> dict[str, Any]:
    """What the settled effect, which is in flight, tells."""
    document: dict[str, Any] = player.document(f"{FIRST}:settled")["input"]
    return document


def result_after(player: Player) -> Any:
    """The parent's result, once the end of the child is journaled and the turn has ended."""
    player.complete(f"{FIRST}:settled", None).model("done")
    (result,) = player.results()
    return {key: value for key, value in result.items() if key not in ("callId", "toolName")}


def test_a_child_runs_between_two_journal_entries_that_name_it() -> None:
    player = start(BOSS).model(calls(ask("d1")))
    assert list(player.in_flight) == [f"{FIRST}:started"]
    player.complete(f"{FIRST}:started", "whatever core says")
    assert list(player.in_flight) == [f"{CHILD}1"]
    assert player.document()["agent"] == {
        "id": "scout",
        "path": "clerk/scout",
        "delegationId": "invocation_T1_0_2",
    }
    assert player.document()["agentId"] == "clerk"
    player.model("Paris")
    assert settled(player) == {"status": "completed", "outcome": {"kind": "completed", "output": "Paris"}}
    assert result_after(player) == {"kind": "completed", "output": "Paris"}
    assert player.state["revision"] == 6


def test_the_hash_of_a_journal_entry_leaves_its_context_out() -> None:
    player = start(BOSS).model(calls(ask("d1")))
    effect = player.asked[f"{FIRST}:started"]
    document = whole_effect(effect)
    assert document["context"] == {"callId": "d1"}
    assert request_hash(document) == effect.request_hash


def test_a_child_s_tools_are_asked_for_in_its_name() -> None:
    player = Player(BOSS, checkpoint(BOSS, info={"user": "u"})).start()
    player.model(calls(ask("d1"))).complete(f"{FIRST}:started", None)
    player.model(calls(call("k1", "find")))
    document = player.document()
    assert document["effectId"] == f"{CHILD_TOOL}2"
    assert document["agent"]["delegationId"] == "invocation_T1_0_2"
    assert document["context"] == {
        "executionId": "S1/invocation_T1_0_2",
        "turnId": "turn_T1_0_invocation_T1_0_2_1",
        "stepId": "step_T1_0_invocation_T1_0_2_1",
        "callId": "k1",
        "invocationId": "invocation_T1_0_invocation_T1_0_2_2",
        "idempotencyKey": "invocation_T1_0_2/k1",
        "info": {"user": "u"},
        "state": {},
    }


def test_a_child_s_memory_is_its_own_and_forgotten() -> None:
    player = delegated(BOSS).model(calls(call("k1", "find"))).tool("x", {"child": 1})
    player.model(calls(call("k2", "find")))
    assert player.document()["context"]["state"] == {"child": 1}
    player.tool("y").model("ok")
    result_after(player)
    assert player.state["state"] == {}
    assert [entry["kind"] for entry in player.entries] == [
        "input",
        "candidate",
        "tool-results",
        "candidate",
        "final",
    ]


def test_a_child_sees_nothing_but_its_task() -> None:
    player = delegated(boss(scout(capability("core", instructions=["Find."]))))
    assert [item["content"][0]["text"] for item in player.prompt()] == ["Find.", "look"]


@pytest.mark.spec("agent-engine:23.34")
def test_one_child_twice_at_once_starts_both_under_ids_of_their_own() -> None:
    player = start(BOSS).model(calls(ask("d1", "a"), call("m", "memo"), ask("d2", "b")))
    assert list(player.in_flight) == [
        f"{FIRST}:started",
        "T1:0:tool:invocation_T1_0_3",
        "T1:0:delegation:invocation_T1_0_4:started",
    ]
    for effect_id in list(player.in_flight):
        player.complete(effect_id, None)
    first, second = player.in_flight
    assert player.prompt(first)[-1]["content"][0]["text"] == "a"
    for effect_id in (second, first):
        player.complete(effect_id, calls(call("", "find"), call("x", "find"), call("x", "find")))
    seen = [item["toolCallId"] for effect_id in player.in_flight for item in player.prompt(effect_id)[-3:]]
    assert len(set(seen)) == 6
    assert len(set(player.asked)) == len(player.observed)


def test_results_stand_in_the_order_of_the_calls_whoever_is_first() -> None:
    player = start(BOSS).model(calls(ask("d1", "a"), ask("d2", "b")))
    other = "T1:0:delegation:invocation_T1_0_3"
    player.complete(f"{other}:started", None).complete(f"{FIRST}:started", None)
    player.complete(f"{CHILD}1".replace("_2", "_3"), "B").complete(f"{other}:settled", None)
    player.complete(f"{CHILD}1", "A").complete(f"{FIRST}:settled", None).model("ok")
    assert [result["output"] for result in player.results()] == ["A", "B"]


@pytest.mark.spec("agent-engine:23.35")
@pytest.mark.parametrize("answer", ["  ", "", "\n\t\u00a0\ufeff\u2003"])
def test_a_blank_answer_is_a_failure_of_a_completed_child(answer: str) -> None:
    player = delegated().model(answer)
    empty = {
        "kind": "failed",
        "code": "delegation.empty-output",
        "message": "The agent finished without an answer.",
    }
    assert settled(player) == {"status": "completed", "outcome": empty}
    assert result_after(player) == empty


def test_a_character_that_only_python_takes_for_white_space_is_an_answer() -> None:
    assert settled(delegated().model("\x1c"))["outcome"] == {"kind": "completed", "output": "\x1c"}


def test_a_child_s_output_schema_shapes_its_answer() -> None:
    child = scout(outputSchema={"type": ["object", "null"], "properties": {"n": {"default": 1}}})
    player = delegated(boss(child)).model({"output": [{"type": "json", "value": {}}]})
    assert settled(player)["outcome"] == {"kind": "completed", "output": {"n": 1}}
    player = delegated(boss(child)).model({"output": [{"type": "json", "value": None}]})
    assert settled(player)["outcome"]["code"] == "delegation.empty-output"


# Failures


def test_a_failed_child_is_quoted_with_its_last_words() -> None:
    player = delegated()
    player.model(calls(text(" draft "), call("k1", "find"))).tool("x")
    player.model(calls(text(" \n"), call("k2", "find"))).tool("x")
    player.model(FAILURE)
    assert settled(player) == {
        "status": "failed",
        "outcome": {
            "kind": "failed",
            "code": "delegation.failed",
            "message": "The agent failed (model.overloaded: busy).\n"
            "Partial output (evidence, not an answer):\ndraft",
        },
    }
    assert result_after(player)["code"] == "delegation.failed"


def test_long_last_words_are_cut_by_units() -> None:
    player = delegated().model(calls(text(f"  {'x' * 3999}😀y"), call("k1", "find"))).tool("x")
    message = settled(player.model(FAILURE))["outcome"]["message"]
    assert message.endswith(f":\n{'x' * 3999}\ud83d…")
    player = delegated().model(calls(text("x" * 4000), call("k1", "find"))).tool("x")
    assert settled(player.model(FAILURE))["outcome"]["message"].endswith("xx")


def test_an_execution_failure_of_a_child_is_named_by_its_code_only() -> None:
    manifest = boss(scout(capability("core", hooks="after-turn")))
    player = delegated(manifest).model("x")
    player.fail(player.only("hook"), "internal", "secret")
    assert settled(player)["outcome"]["message"] == "The agent failed (execution.failed)."


def test_a_child_s_refused_answer_is_evidence_too() -> None:
    player = delegated(boss(scout(outputSchema={"type": "object"}))).model("words")
    assert settled(player)["outcome"]["message"] == (
        "The agent failed (output.invalid: Structured terminal output must contain exactly one JSON block "
        "and no text blocks).\nPartial output (evidence, not an answer):\nwords"
    )


def test_session_tools_go_to_the_agent_that_owns_them() -> None:
    shape = {"type": "object"}
    extra = [
        {"agentId": "scout", "capabilityId": "core", "name": "mcp__a", "inputSchema": shape},
        {"capabilityId": "rack", "name": "mcp__b", "inputSchema": shape},
        {"agentId": "other", "capabilityId": "nowhere", "name": "mcp__a", "inputSchema": shape},
    ]
    player = delegated(session_tools=extra)
    root, child = (player.asked[name].model_call for name in ("T1:0:model:invocation_T1_0_1", f"{CHILD}1"))
    assert root is not None
    assert child is not None
    assert (b"mcp__a" in root.text(), b"mcp__b" in root.text()) == (False, True)
    assert (b"mcp__a" in child.text(), b"mcp__b" in child.text()) == (True, False)
    player.model(calls(call("k1", "mcp__a")))
    assert player.document()["capabilityId"] == "core"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([("nowhere", "x")], "Session tool 'x' references unknown capability 'nowhere'"),
        ([("core", "find")], "Session tool 'find' collides with a declared tool"),
        ([("core", "x"), ("core", "x")], "Duplicate session tool 'x'"),
    ],
)
def test_session_tools_that_don_t_fit_a_child_fail_its_calls_only(extra: Any, message: str) -> None:
    tools = [
        {"agentId": "scout", "capabilityId": where, "name": name, "inputSchema": {"type": "object"}}
        for where, name in extra
    ]
    player = delegated(session_tools=tools)
    failed = {"kind": "failed", "code": "agent.build-failed", "message": message}
    assert settled(player) == {"status": "failed", "outcome": failed}
    assert result_after(player) == failed


def test_a_child_whose_schema_can_t_be_compiled_fails_its_calls_only() -> None:
    broken = scout(capability("core", tool("find") | {"inputSchema": {"type": "object", "if": {}}}))
    player = delegated(boss(broken))
    assert settled(player)["outcome"] == {
        "kind": "failed",
        "code": "delegation.failed",
        "message": "Conditional schemas (if/then/else) are not supported",
    }
    shaped = scout(outputSchema={"type": "object", "not": {"type": "null"}})
    assert settled(delegated(boss(shaped)))["outcome"]["code"] == "output.invalid-schema"
    listed = tool("find") | {"inputSchema": {"type": "array"}}
    player = delegated(boss(scout(capability("core", listed))))
    assert settled(player)["outcome"] == {
        "kind": "failed",
        "code": "tool.invalid-schema",
        "message": "Tool inputSchema JSON Schema root type must be object",
    }


@pytest.mark.parametrize("which", ["started", "settled"])
def test_a_journal_entry_that_core_refuses_fails_the_call(which: str) -> None:
    player = start(BOSS).model(calls(ask("d1")))
    if which == "settled":
        player.complete(f"{FIRST}:started", None).model("Paris")
    player.fail(f"{FIRST}:{which}", "internal", "journal broke").model("ok")
    assert player.results() == [
        {
            "callId": "d1",
            "toolName": "scout",
            "kind": "failed",
            "code": "tool.execution-failed",
            "message": "journal broke",
        }
    ]


# What can't happen inside a child


@pytest.mark.spec("agent-engine:23.36")
@pytest.mark.parametrize(
    "value",
    [
        {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}},
        {"kind": "interaction-required", "interaction": {"kind": "quiz"}},
        {"kind": "deferred", "token": 1},
    ],
)
def test_a_child_s_tool_can_t_wait_for_anybody(value: Any) -> None:
    player = delegated().model(calls(call("k1", "find"), call("k2", "find")))
    player.complete(f"{CHILD_TOOL}2", value, {"k": 1}).complete(f"{CHILD_TOOL}3", "x")
    shown = [item["content"][0]["text"] for item in player.prompt()[-2:]]
    assert shown == [
        f'{{"kind":"failed","code":"delegation.interaction-unsupported","message":"{NO_ASKING}"}}',
        '"x"',
    ]
    player.model("ok")
    assert result_after(player)["output"] == "ok"


def test_a_child_s_hook_can_t_ask_for_approval() -> None:
    manifest = boss(scout(capability("core", tool("find"), hooks="after-step")))
    player = delegated(manifest).model(calls(call("k1", "find"), call("k2", "find")))
    player.hook(core={"approve": [{"id": "k1", "prompt": "?"}]})
    assert list(player.in_flight) == [f"{CHILD_TOOL}3"]
    player.tool("x")
    assert [item["status"] for item in player.prompt()[-2:]] == ["failed", "completed"]


@pytest.mark.spec("agent-engine:23.37")
def test_a_pending_tool_of_a_child_makes_the_segment_wait() -> None:
    first = delegated().model(calls(call("k1", "find"), call("k2", "find")))
    first.pending(f"{CHILD_TOOL}2")
    assert first.ended is None
    first.complete(f"{CHILD_TOOL}3", "x")
    assert (first.result.status, first.result.effect_ids) == ("waiting", (f"{CHILD_TOOL}2",))
    assert f"{FIRST}:settled" not in first.asked
    again = delegated().model(calls(call("k1", "find"), call("k2", "find")))
    assert again.hashes.items() >= first.hashes.items()


def test_a_suspended_child_lets_its_siblings_go_on() -> None:
    player = start(BOSS).model(calls(ask("d1"), ask("d2")))
    other = "T1:0:delegation:invocation_T1_0_3"
    player.pending(f"{FIRST}:started").complete(f"{other}:started", None)
    player.model("B").complete(f"{other}:settled", None)
    assert (player.result.status, player.result.effect_ids) == ("waiting", (f"{FIRST}:started",))


# Hooks, approvals, rollovers, compaction


def test_a_child_s_hooks_are_asked_in_its_name() -> None:
    manifest = boss(scout(capability("core", hooks="before-turn before-step after-step after-turn")))
    player = delegated(manifest)
    assert list(player.in_flight) == ["T1:0:hook:invocation_T1_0_2/before-turn"]
    assert player.document()["agent"]["id"] == "scout"
    assert player.document()["input"]["input"] == "look"
    player.hook(core={"instructions": ["Be kind."], "state": {"k": 1}})
    step = "step_T1_0_invocation_T1_0_2_1"
    assert list(player.in_flight) == [f"T1:0:hook:invocation_T1_0_2/before-step:{step}"]
    player.hook().model("x").hook()
    assert list(player.in_flight) == [f"T1:0:hook:invocation_T1_0_2/after-turn:{step}"]
    player.hook(core={"block": "Leak"})
    assert settled(player)["outcome"]["message"] == (
        "The agent failed (dynamics.blocked: Leak).\nPartial output (evidence, not an answer):\nx"
    )


def test_a_delegation_that_was_approved_runs_under_the_new_segment_s_ids() -> None:
    manifest = boss(scout(), hooks="after-step")
    first = start(manifest).model(calls(ask("d1"))).hook(team={"approve": [{"id": "d1", "prompt": "?"}]})
    answer = {"kind": "approve", "interactionId": "interaction_T1_0_1", "approved": True}
    second = following(first, manifest, answer).start()
    second.complete("T1:1:delegation:invocation_T1_0_2:started", None)
    assert list(second.in_flight) == [
        "T1:1:model:invocation_T1_0_2/invocation_T1_1_invocation_T1_0_2_1",
    ]
    second.model("Paris").complete("T1:1:delegation:invocation_T1_0_2:settled", None).model("ok").hook()
    assert second.results()[0]["output"] == "Paris"


def test_a_child_is_never_rolled_over() -> None:
    player = delegated(yield_after=YieldAfter(steps=1, ms=0))
    for number in range(3):
        player.now += 1000
        player.model(calls(call(f"k{number}", "find"))).tool("x")
    player.model("ok").complete(f"{FIRST}:settled", None)
    assert player.result.status == "yielded"


def test_a_child_s_conversation_is_compacted_in_its_name() -> None:
    evidence = {"extras": {"contextWindow": 1200, "maxOutputTokens": 200}}
    player = delegated()
    player.model({"output": [call("k1", "find"), text("y" * 400)], "evidence": evidence})
    player.tool("x" * 6000)
    assert list(player.in_flight) == ["T1:0:model:invocation_T1_0_2/compaction-step_T1_0_invocation_T1_0_2_2"]
    assert player.document()["context"]["invocationId"] == "compaction-step_T1_0_invocation_T1_0_2_2"
    effect = player.asked[player.only("model")]
    assert effect.model_call is not None
    assert b'"executionId":"S1/invocation_T1_0_2"' in effect.model_call.text()


# Aborts


def test_an_abort_while_a_child_runs_cancels_both() -> None:
    player = start(BOSS).model(calls(ask("d1"), call("m", "memo")))
    player.complete(f"{FIRST}:started", None)
    player.engine.abort(CANCEL)
    player.answer(f"{CHILD}1", AbortedEffect(CANCEL))
    player.complete("T1:0:tool:invocation_T1_0_3", "kept")
    assert player.result.status == "cancelled"
    assert f"{FIRST}:settled" not in player.asked
    failed = {"kind": "failed", "code": "tool.cancelled", "message": "Turn cancelled"}
    assert player.results() == [
        {"callId": "d1", "toolName": "scout", **failed},
        {"callId": "m", "toolName": "memo", "kind": "completed", "output": "kept"},
    ]


def test_a_child_that_finishes_after_an_abort_is_not_journaled() -> None:
    player = delegated().abort(stopping=False).model("late")
    assert player.result.status == "cancelled"
    assert player.results()[0]["code"] == "tool.cancelled"
    assert f"{FIRST}:settled" not in player.asked


def test_an_uncertain_effect_of_a_child_wins_over_an_abort() -> None:
    player = delegated().abort(stopping=False).uncertain(f"{CHILD}1")
    assert (player.result.status, player.result.effect_ids) == ("uncertain", (f"{CHILD}1",))


# Flows


def flow(value: Any) -> Player:
    """A turn in which a flow has answered."""
    player = start(BOSS).model(calls(ask("d1", to="pipeline"))).complete(f"{FIRST}:started", None)
    return player.complete("T1:0:agent:invocation_T1_0_2:flow", value)


def test_a_flow_is_one_effect() -> None:
    player = start(BOSS).model(calls(ask("d1", to="pipeline"))).complete(f"{FIRST}:started", None)
    document = player.document("T1:0:agent:invocation_T1_0_2:flow")
    assert document["input"] == {"agentId": "pipeline", "input": "look", "path": "clerk/pipeline"}
    assert document["context"] == {"role": "delegate", "delegationId": "invocation_T1_0_2"}
    assert document["agent"] == {
        "id": "pipeline",
        "path": "clerk/pipeline",
        "delegationId": "invocation_T1_0_2",
    }
    player.pending("T1:0:agent:invocation_T1_0_2:flow")
    assert player.result.effect_ids == ("T1:0:agent:invocation_T1_0_2:flow",)


def failure(message: str, code: str = "delegation.failed") -> dict[str, Any]:
    return {"status": "failed", "outcome": {"kind": "failed", "code": code, "message": message}}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"kind": "failed", "code": "a.b", "message": "no"}, failure("The agent failed (a.b: no).")),
        ({"kind": "failed", "code": "execution.x"}, failure("The agent failed (execution.x: execution.x).")),
        (None, failure("The agent finished without an answer.", "delegation.empty-output")),
        (" ", failure("The agent finished without an answer.", "delegation.empty-output")),
    ],
)
def test_a_flow_that_gave_nothing_has_failed(value: Any, told: Any) -> None:
    assert settled(flow(value)) == told


@pytest.mark.parametrize("value", [0, False, [], {"kind": "denied"}, {"kind": "failed"}, "x"])
def test_whatever_else_a_flow_gives_is_its_output(value: Any) -> None:
    told = json_of(settled(flow(value)))
    assert told == {"status": "completed", "outcome": {"kind": "completed", "output": value}}


def test_a_flow_that_core_refuses_is_a_failed_child() -> None:
    player = start(BOSS).model(calls(ask("d1", to="pipeline"))).complete(f"{FIRST}:started", None)
    player.fail("T1:0:agent:invocation_T1_0_2:flow", "internal", "no such agent")
    assert settled(player) == failure("no such agent")


def test_arguments_of_a_delegation_are_checked_like_any_others() -> None:
    player = start(BOSS).model(calls(call("d1", "scout"), ask("d2", "")))
    assert [item["status"] for item in player.prompt()[-2:]] == ["failed", "failed"]
    assert player.only("model")
