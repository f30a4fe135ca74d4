"""Agents, tools, switches and chains: what a value means, and where a failure stands."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import Completed
from tests.engine.flow.support import FN, agent, failed, flow, flow1, host_error, marker, record, run

TOOL = flow({"tool": {"name": "t"}})
TOOL1 = flow1({"tool": {"name": "t"}})
ASKS = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "ok?"}}


@pytest.mark.spec("flow-engine:17.29")
@pytest.mark.parametrize("manifest", [TOOL, TOOL1])
@pytest.mark.parametrize(
    ("value", "output"),
    [
        ({"kind": "completed", "output": None}, None),
        ({"kind": "completed", "output": 3, "more": 1}, 3),
        ({"kind": "completed"}, {"kind": "completed"}),
        (ASKS, ASKS),
        ({"kind": "deferred"}, {"kind": "deferred"}),
        ([1], [1]),
        ("text", "text"),
        (None, None),
    ],
)
def test_a_tools_value_gives_its_output(manifest: Any, value: Any, output: Any) -> None:
    assert run(manifest, answers={"t:tool:-": value}).output == output


@pytest.mark.spec("flow-engine:17.29")
@pytest.mark.parametrize("manifest", [TOOL, TOOL1])
def test_a_denied_tool_fails_with_its_reason(manifest: Any) -> None:
    played = run(manifest, answers={"t:tool:-": {"kind": "denied", "reason": "no"}})
    assert played.error == {"code": "tool.denied", "message": "no", "path": "t"}
    played = run(manifest, answers={"t:tool:-": {"kind": "denied", "reason": 1}})
    assert played.code_and_path == ("tool.denied", "t")
    assert played.error["message"]


def test_a_tool_gets_the_nodes_input_as_it_is() -> None:
    played = run(TOOL, {"a": [None]})
    assert (played.input("t:tool:-"), played.context("t:tool:-")) == ({"a": [None]}, {"toolName": "t"})


@pytest.mark.spec("flow-engine:17.30")
@pytest.mark.parametrize("manifest", [flow({"agent": "a"}, "a"), flow1({"agent": "a"})])
def test_a_bare_failure_fails_the_leaf_and_a_marked_one_is_its_output(manifest: Any) -> None:
    looks_failed = {"kind": "failed", "code": "x"}
    assert run(manifest, answers={"a:agent:-": looks_failed}).error == {
        "code": "x",
        "message": "x",
        "path": "a",
    }
    assert run(manifest, answers={"a:agent:-": marker(looks_failed, agent("a"))}).output == looks_failed


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "failed", "code": 1},
        {"kind": "failed"},
        {"__nylorunAgentTurn": 2, "output": 1, "agent": {}},
        {"__nylorunAgentTurn": True, "output": 1, "agent": {}},
        {"__nylorunAgentTurn": 1, "output": 1},
        {"__nylorunAgentTurn": 1, "agent": {}},
        [{"__nylorunAgentTurn": 1}],
    ],
)
def test_what_only_looks_like_a_failure_or_a_marker_is_an_output(value: Any) -> None:
    assert run(flow({"agent": "a"}, "a"), answers={"a:agent:-": value}).output == value


def test_a_failure_may_say_where_it_stands() -> None:
    value = failed("x.y", "m", path="elsewhere")
    assert run(TOOL, answers={"t:tool:-": value}).error["path"] == "elsewhere"


@pytest.mark.spec("flow-engine:17.37")
def test_a_state_patch_is_ignored() -> None:
    answer = Completed({"value": 1, "statePatch": {"a": 1}})
    assert run(TOOL, answers={"t:tool:-": answer}).output == 1


SWITCH = flow(
    {"switch": {"on": FN, "cases": {"x": {"agent": "a"}}, "default": {"agent": "b"}}, "id": "s"}, "a", "b"
)
SWITCH1 = flow1({"switch": {"id": "s", "on": FN, "cases": {"x": {"agent": "a"}}, "default": {"agent": "b"}}})


@pytest.mark.spec("flow-engine:17.6")
@pytest.mark.parametrize("key", [42, None, ["x"], {"x": 1}, True])
def test_a_switch_function_that_gives_no_name_fails_the_switch(key: Any) -> None:
    assert run(SWITCH, answers={"s:on:fn:-": key}).code_and_path == ("fn.failed", "s")
    assert run(SWITCH1, answers={"s:fn:-": key}).code_and_path == ("fn.failed", "s")


@pytest.mark.spec("flow-engine:17.7")
def test_the_default_of_version_one_stands_below_the_switch() -> None:
    played = run(SWITCH1, "in", {"s:fn:-": "other", "s/default:agent:-": "out"})
    assert played.output == "out"
    assert played.document("s:fn:-")["key"] == "s/on"
    assert (played.input("s:fn:-"), played.context("s:fn:-")) == ("in", {"role": "switch-on"})
    assert played.input("s/default:agent:-") == {"agentId": "b", "input": "in", "path": "s/default"}
    assert run(SWITCH1, "in", {"s:fn:-": "x"}).waits_for == {"s/x:agent:-"}


def test_a_switch_of_version_two_shows_the_flow_to_its_function() -> None:
    played = run(SWITCH, "in", {"s:on:fn:-": "other", "b:agent:-": "out"})
    assert played.output == "out"
    assert played.input("s:on:fn:-") == {"input": "in", "results": {}, "flowInput": "in"}
    assert played.context("s:on:fn:-") == {"role": "on"}


@pytest.mark.spec("flow-engine:17.8")
@pytest.mark.parametrize(
    ("manifest", "effect"),
    [
        (flow({"switch": {"on": FN, "cases": {"x": {"agent": "a"}}}}, "a"), "@:on:fn:-"),
        (flow1({"switch": {"id": "@", "on": FN, "cases": {"x": {"agent": "a"}}}}), "@:fn:-"),
    ],
)
@pytest.mark.parametrize("key", ["z", "constructor", "default"])
def test_a_name_without_a_case_fails_and_is_quoted(manifest: Any, effect: str, key: str) -> None:
    played = run(manifest, answers={effect: key})
    assert played.code_and_path == ("switch.no-match", "@")
    assert key in played.error["message"]


@pytest.mark.spec("flow-engine:17.32")
def test_an_unnamed_stage_feeds_the_next_one_and_is_no_result() -> None:
    manifest = flow(
        {
            "chain": [
                {"agent": "a"},
                {"parallel": {"x": {"agent": "b"}}},
                {"chain": [{"agent": "c"}], "id": "named"},
                {"tool": {"name": "t"}, "input": FN},
            ]
        },
        *"abc",
    )
    played = run(manifest, "in", {"a:agent:-": 1, "b:agent:-": 2, "c:agent:-": 3})
    assert played.input("c:agent:-")["input"] == {"x": 2}
    assert played.input("t:input:fn:-") == {
        "input": 3,
        "results": {"a": 1, "named": 3},
        "flowInput": "in",
    }
    assert played.context("t:input:fn:-") == {"role": "input"}


def test_an_inner_chain_has_results_of_its_own() -> None:
    inner = {"chain": [{"agent": "b"}, {"agent": "c", "input": FN}], "id": "inner", "input": FN}
    manifest = flow({"chain": [{"agent": "a"}, inner]}, *"abc")
    played = run(manifest, "in", {"a:agent:-": 1, "inner:input:fn:-": 2, "b:agent:-": 3})
    assert played.input("inner:input:fn:-")["results"] == {"a": 1}
    assert played.input("c:input:fn:-") == {"input": 3, "results": {"b": 3}, "flowInput": "in"}


def test_results_stay_as_they_were_when_the_effect_was_asked_for() -> None:
    steps = [{"agent": "a", "input": FN}, {"agent": "b"}]
    played = run(flow({"chain": steps}, *"ab"), "in", {"a:input:fn:-": 1, "a:agent:-": 2, "b:agent:-": 3})
    assert played.input("a:input:fn:-")["results"] == {}


@pytest.mark.spec("flow-engine:17.18")
@pytest.mark.parametrize("version", [1, 2])
def test_two_leaves_of_one_name_with_different_inputs_collide(version: int) -> None:
    steps = [{"agent": "a"}, {"agent": "a"}]
    manifest = flow({"chain": steps}, "a") if version == 2 else flow1({"chain": {"id": "c", "steps": steps}})
    name = "a:agent:-" if version == 2 else "c/a:agent:-"

    first = run(manifest, "in")
    outcomes = record(first, {name: "out"})
    played = run(manifest, "in", outcomes=outcomes)
    assert played.known == [True, True]
    assert played.effects[0].request_hash != played.effects[1].request_hash
    assert played.code_and_path == ("fn.failed", "top" if version == 2 else "c")


@pytest.mark.spec("flow-engine:17.33")
def test_drift_in_a_chain_fails_the_flow_at_its_own_path() -> None:
    two = run(flow({"chain": [{"agent": "a"}]}, "a"), answers={"a:agent:-": host_error()})
    assert two.error == {"code": "fn.failed", "message": "drift", "path": "top"}
    one = flow1({"chain": {"id": "c", "steps": [{"agent": "a"}]}})
    assert run(one, answers={"c/a:agent:-": host_error()}).error == {
        "code": "fn.failed",
        "message": "drift",
        "path": "c",
    }


@pytest.mark.parametrize("manifest", [flow({"agent": "a"}, "a"), flow1({"agent": "a"})])
def test_an_outcome_that_says_cancelled_cancels_the_flow(manifest: Any) -> None:
    assert run(manifest, answers={"a:agent:-": failed("cancelled")}).result.status == "cancelled"


def test_an_abort_between_effects_cancels_and_one_while_waiting_fails() -> None:
    manifest = flow({"chain": [{"agent": "a"}, {"agent": "b"}]}, *"ab")
    waiting = run(manifest, answers={"a:agent:-": 1}, abort_at="b:agent:-")
    assert waiting.error == {"code": "fn.failed", "message": "Turn cancelled", "path": "top"}
