from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import Completed, EngineRefused
from tests.engine.support import HELPER, Player, agent, call, calls, checkpoint, following, start, text, tool

FIRST = "T1:0:tool:invocation_T1_0_2"
SECOND = "T1:0:tool:invocation_T1_0_3"
THIRD = "T1:0:tool:invocation_T1_0_4"
TWO = agent(tool("a"), tool("b"))


def result_of(value: Any, **tool_members: Any) -> Any:
    """The result of one tool call that the host answers with this value."""
    player = start(agent(tool("t", **tool_members))).model(calls(call("c", "t"))).tool(value).model("ok")
    (result,) = player.results()
    return result


def prompt_text_of(value: Any) -> str:
    player = start(agent(tool("t"))).model(calls(call("c", "t"))).tool(value)
    content: str = player.prompt()[-1]["content"][0]["text"]
    return content


@pytest.mark.spec("agent-engine:23.11")
def test_only_the_executable_call_runs_and_results_keep_the_order() -> None:
    player = start(HELPER).model(
        calls(call("c1", "nope"), call("c2", "lookup", word="ox"), call("c3", "lookup"))
    )
    assert list(player.in_flight) == [FIRST]
    paused = player.tool({"kind": "deferred"})
    plan = paused.state["plan"]
    assert [result["callId"] for result in plan["immediate"]] == ["c1", "c3"]
    outcome = {"kind": "completed", "output": 1}
    settle = {"kind": "settle", "invocationId": "invocation_T1_0_2", "outcome": outcome}
    results = following(paused, HELPER, settle).start().model("ok").results()
    assert [(result["callId"], result.get("code")) for result in results] == [
        ("c1", "tool.unknown"),
        ("c2", None),
        ("c3", "tool.invalid-arguments"),
    ]
    assert results[0]["message"] == "Unknown Tool 'nope'"


@pytest.mark.spec("agent-engine:23.12")
def test_missing_arguments_fail_with_their_issues() -> None:
    player = start(HELPER).model(calls(call("c", "lookup")))
    issue = "Invalid input: expected string, received undefined"
    assert player.prompt()[-1]["content"][0]["text"] == (
        f'{{"kind":"failed","code":"tool.invalid-arguments","message":"word: {issue}","details":'
        f'{{"phase":"input","issues":[{{"path":["word"],"code":"invalid_type","message":"{issue}"}}]}}}}'
    )
    assert player.model("ok").results()[0]["details"]["phase"] == "input"


@pytest.mark.spec("agent-engine:23.13")
def test_defaults_reach_the_tool_and_the_model_s_own_arguments_stay_beside() -> None:
    player = start(HELPER).model(calls(call("c", "tally")))
    assert player.in_flight[FIRST].document["input"] == {"n": 1}
    saved = player.tool({"kind": "deferred"}).state["plan"]["calls"][0]
    assert (saved["args"], saved["rawArgs"]) == ({"n": 1}, {})


@pytest.mark.spec("agent-engine:23.14")
@pytest.mark.parametrize(
    "value",
    [{"kind": "failed"}, {"kind": "failed", "code": "a"}, {"kind": "failed", "code": 1, "message": "m"}],
)
def test_a_failure_without_its_strings_is_an_invalid_result(value: Any) -> None:
    result = result_of(value)
    assert (result["code"], result["message"]) == (
        "tool.invalid-tool-result",
        "Expected a completed, failed, or denied tool result",
    )


def test_a_denial_needs_a_reason() -> None:
    assert result_of({"kind": "denied", "reason": "no"}) == {
        "callId": "c",
        "toolName": "t",
        "kind": "denied",
        "reason": "no",
    }
    assert result_of({"kind": "denied"})["message"] == "Tool denial reason must be a string"


def test_other_members_of_a_failure_are_dropped() -> None:
    failure = {"kind": "failed", "code": "a.b", "message": "m", "details": {"x": 1}, "retryable": True}
    assert set(result_of(failure)) == {"callId", "toolName", "kind", "code", "message"}


@pytest.mark.spec("agent-engine:23.15")
@pytest.mark.parametrize(
    "value", [None, [1], {"a": 1}, {"kind": "other"}, {"kind": ["completed"]}, "", 0, False]
)
def test_any_other_value_is_a_completed_output(value: Any) -> None:
    result = result_of(value)
    assert (result["kind"], result["output"]) == ("completed", value)


@pytest.mark.spec("agent-engine:23.15")
def test_a_completed_outcome_without_output_is_invalid_data() -> None:
    expected = ("json.invalid-data", "value.output cannot be undefined")
    result = result_of({"kind": "completed"})
    assert (result["code"], result["message"]) == expected
    player = start(agent(tool("t"))).model(calls(call("c", "t"))).answer(FIRST, Completed({})).model("ok")
    assert (player.results()[0]["code"], player.results()[0]["message"]) == expected


@pytest.mark.spec("agent-engine:23.16")
def test_an_output_reads_in_javascript_s_member_order() -> None:
    assert prompt_text_of({"b": 1, "2": 2, "1": 3}) == '{"1":3,"2":2,"b":1}'
    assert prompt_text_of({"kind": "completed", "output": {"b": 1.5, "a": 1e21}}) == '{"b":1.5,"a":1e+21}'


def test_an_output_is_checked_and_read_through_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "default": 7}, "a": {"type": "string"}},
        "required": ["a"],
    }
    assert result_of({"z": 1, "a": "x"}, outputSchema=schema)["output"] == {"z": 1, "a": "x", "n": 7}
    refused = result_of({"a": 5, "n": "x"}, outputSchema=schema)
    assert refused["code"] == "tool.invalid-output"
    assert refused["message"] == (
        "Invalid input: expected number, received string; Invalid input: expected string, received number"
    )
    assert refused["details"]["phase"] == "output"


@pytest.mark.spec("agent-engine:23.17")
def test_patches_apply_in_plan_order_whatever_arrives_first() -> None:
    player = start(TWO).model(calls(call("c1", "a"), call("c2", "b")))
    contexts: list[Any] = [effect.document["context"] for effect in player.in_flight.values()]
    assert [context["state"] for context in contexts] == [{}, {}]
    player.complete(SECOND, "fast", {"k": 2, "second": True})
    player.complete(FIRST, "slow", {"k": 1})
    player.model("ok")
    assert player.state["state"] == {"k": 2, "second": True}
    assert contexts[0]["state"] == {}


def test_a_patch_counts_whatever_the_outcome_says() -> None:
    player = start(TWO).model(calls(call("c1", "a"), call("c2", "b")))
    player.complete(FIRST, {"kind": "failed", "code": "x", "message": "m"}, {"a": 1})
    player.complete(SECOND, {"kind": "denied", "reason": "r"}, {"b": 2})
    assert player.model("ok").state["state"] == {"a": 1, "b": 2}


def test_a_patch_that_is_no_object_is_ignored() -> None:
    assert start(TWO).model(calls(call("c", "a"))).tool("x", [1]).model("ok").state["state"] == {}


@pytest.mark.spec("agent-engine:23.18")
def test_one_uncertain_call_makes_the_segment_uncertain_and_finished_ones_are_reused() -> None:
    from gateway.engine.contract import RecordedOutcome

    three = agent(tool("a"), tool("b"), tool("c"))
    candidate = calls(call("c1", "a"), call("c2", "b"), call("c3", "c"))
    player = start(three).model(candidate).pending(FIRST).uncertain(SECOND)
    assert player.ended is None
    player.complete(THIRD, "done", {"k": 1})
    assert player.result.status == "uncertain"
    assert set(player.result.effect_ids) == {FIRST, SECOND}
    assert player.result.state is None
    hashes = {effect_id: effect.request_hash for effect_id, effect in player.asked.items()}
    model = "T1:0:model:invocation_T1_0_1"
    known = [(model, candidate), (FIRST, 1), (SECOND, 2), (THIRD, "done")]
    again = Player(
        three,
        checkpoint(three),
        outcomes=[RecordedOutcome(id_, hashes[id_], {"value": value}) for id_, value in known],
    ).start()
    assert [(effect.effect_id, recorded) for effect, recorded in again.observed] == [
        (model, True),
        (FIRST, True),
        (SECOND, True),
        (THIRD, True),
        ("T1:0:model:invocation_T1_0_5", False),
    ]
    again.model("ok")
    assert [result["output"] for result in again.results()] == [1, 2, "done"]


@pytest.mark.spec("agent-engine:23.38")
def test_two_visible_tools_of_one_name_fail_the_step_before_the_model_is_asked() -> None:
    manifest = agent(tool("same"))
    manifest["capabilities"].append({"id": "other", "type": "agent-plugin"})
    clash = {"capabilityId": "other", "name": "same", "inputSchema": {"type": "object"}}
    player = start(manifest, session_tools=[clash])
    assert not player.asked
    assert player.error == {
        "code": "configuration.duplicate-tool-name",
        "message": "Duplicate Tool 'same'",
    }
    assert player.state["revision"] == 2


def test_several_shared_names_are_sorted_by_utf16_code_units() -> None:
    names = ("\ue000", "b", "\U0001f600", "a")
    manifest = agent(*map(tool, names))
    manifest["capabilities"].append({"id": "other", "type": "agent"})
    clash = [{"capabilityId": "other", "name": name, "inputSchema": {"type": "object"}} for name in names]
    player = start(manifest, session_tools=clash)
    assert player.error["message"] == "Duplicate Tool 'a', 'b', '\U0001f600', '\ue000'"


@pytest.mark.spec("agent-engine:23.39")
def test_a_session_tool_with_an_unsupported_schema_is_refused_without_a_code() -> None:
    schema = {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}
    odd = {"capabilityId": "desk", "name": "odd", "inputSchema": schema}
    player = Player(HELPER, checkpoint(HELPER), session_tools=[odd])
    with pytest.raises(EngineRefused) as refused:
        player.start()
    assert refused.value.code is None
    assert not player.observed


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"capabilityId": "none"}, "agent.build-failed", "references unknown capability 'none'"),
        ({"name": "lookup"}, "agent.build-failed", "Session tool 'lookup' collides with a declared tool"),
        ({"inputSchema": {"type": "array"}}, "tool.invalid-schema", "root type must be object"),
        ({"inputSchema": {}}, "tool.invalid-schema", "Tool inputSchema JSON Schema root type must be object"),
        ({"inputSchema": None}, "agent.build-failed", "inputSchema"),
        ({"name": ""}, "agent.build-failed", "name"),
    ],
)
def test_a_session_tool_that_does_not_fit_is_refused(given: Any, code: str, message: str) -> None:
    fitting = {"capabilityId": "desk", "name": "extra", "inputSchema": {"type": "object"}}
    player = Player(HELPER, checkpoint(HELPER), session_tools=[{**fitting, **given}])
    with pytest.raises(EngineRefused, match=message) as refused:
        player.start()
    assert refused.value.code == code


@pytest.mark.parametrize("given", [5, None, "tool", []])
def test_a_session_tool_that_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(EngineRefused) as refused:
        Player(HELPER, checkpoint(HELPER), session_tools=[given]).start()
    assert refused.value.code == "agent.build-failed"


def test_two_session_tools_of_one_name_are_refused() -> None:
    extra = {"capabilityId": "desk", "name": "extra", "inputSchema": {"type": "object"}}
    with pytest.raises(EngineRefused, match="Duplicate session tool 'extra'"):
        Player(HELPER, checkpoint(HELPER), session_tools=[extra, {**extra, "capabilityId": "base"}]).start()


def test_session_tools_stand_after_their_capability_s_own_and_of_others_are_left_out() -> None:
    manifest = agent(tool("own"))
    manifest["capabilities"].append({"id": "later", "type": "agent", "tools": [tool("last")]})
    extra = [
        {"capabilityId": "later", "name": "x2", "inputSchema": {"type": "object"}, "agentId": "clerk"},
        {"capabilityId": "desk", "name": "x1", "description": "", "inputSchema": {"type": "object"}},
        {"capabilityId": "desk", "name": "child", "inputSchema": {"type": "object"}, "agentId": "child"},
    ]
    player = start(manifest, session_tools=extra)
    effect = player.in_flight[player.only("model")]
    assert effect.model_call is not None
    from protocol import jsjson

    document: Any = jsjson.loads(effect.model_call.text())
    assert [listed["name"] for listed in document["tools"]] == ["own", "x1", "last", "x2"]
    assert document["tools"][1] == {"name": "x1", "inputSchema": {"type": "object"}}


@pytest.mark.spec("agent-engine:23.46")
def test_drift_fails_a_tool_s_result_and_a_model_s_turn() -> None:
    player = start(TWO).model(calls(call("c", "a")))
    player.fail(FIRST, "effect_drift", "another request")
    failed = {"kind": "failed", "code": "tool.execution-failed", "message": "another request"}
    assert player.model("ok").results() == [{"callId": "c", "toolName": "a", **failed}]
    player = start(TWO)
    player.fail(player.only("model"), "effect_drift", "another request")
    assert player.error == {"code": "model.failed", "message": "another request"}


def test_a_recorded_outcome_of_another_request_is_drift() -> None:
    from gateway.engine.contract import RecordedOutcome

    model = "T1:0:model:invocation_T1_0_1"
    outcome = RecordedOutcome(model, "0" * 64, {"value": "hello"})
    player = Player(TWO, checkpoint(TWO), outcomes=[outcome]).start()
    assert player.error == {"code": "model.failed", "message": "Effect identity request drift"}
    assert [(effect.effect_id, recorded) for effect, recorded in player.observed] == [(model, True)]


def test_text_beside_calls_is_shown_and_is_not_the_answer() -> None:
    player = start(TWO).model(calls(text("Looking."), call("c", "a"))).tool("x").model("Found.")
    assert player.result.output == "Found."
    assert [entry["kind"] for entry in player.entries] == [
        "input",
        "candidate",
        "tool-results",
        "candidate",
        "final",
    ]
