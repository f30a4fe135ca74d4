"""Loops of version 2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.flow.support import (
    FN,
    PENDING,
    agent,
    failed,
    flow,
    host_error,
    marker,
    run,
)


def looped(run_: Any = None, verify: Any = None, *, name: str | None = "l", **members: Any) -> Any:
    node: dict[str, Any] = {
        "loop": {"run": run_ or {"agent": "w"}, "verify": verify or FN, **(members or {"max": 3})}
    }
    return node if name is None else {**node, "id": name}


def body(n: int, output: Any = "o", verdict: Any = None) -> dict[str, Any]:
    return {f"w:agent:{n}": output, f"l:verify:verify:{n}": {"pass": False} if verdict is None else verdict}


MAX = flow(looped(), "w")
DECIDES = flow(looped(decide=FN), "w")


@pytest.mark.spec("flow-engine:17.17")
def test_a_verifier_that_never_passes_exhausts_the_loop() -> None:
    clerk = looped({"agent": "clerk"}, name=None)
    manifest = flow(
        {"chain": [{"agent": "a"}, {"switch": {"on": FN, "cases": {"invoice": clerk}}, "id": "dispatch"}]},
        "a",
        "clerk",
    )

    def answer(effect: Any) -> Any:
        if effect.kind == "verify":
            return {"pass": False, "feedback": "still too long"}
        return "invoice" if effect.kind == "fn" else "text"

    played = run(manifest, "in", answer)
    assert played.error == {
        "code": "loop.exhausted",
        "message": "Loop stopped after 3 attempts: still too long",
        "path": "@1.invoice",
    }
    assert [played.context(f"clerk:agent:{n}") for n in (1, 2, 3)] == [
        {"loopPath": "@1.invoice", "n": n} for n in (1, 2, 3)
    ]
    assert played.context("@1.invoice:verify:verify:2") == {
        "role": "verify",
        "loopPath": "@1.invoice",
        "n": 2,
    }


@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        ({"pass": False, "feedback": "f"}, "1 attempt: f"),
        ({"pass": 0, "feedback": None}, "1 attempt: null"),
        (
            {"pass": "", "feedback": [1, None, [2, [], True], {"a": 1}]},
            "1 attempt: 1,,2,,true,[object Object]",
        ),
        ({"pass": None, "feedback": 1e21}, "1 attempt: 1e+21"),
        ({"feedback": float("inf")}, "1 attempt: Infinity"),
        ({"feedback": {}}, "1 attempt: [object Object]"),
        ("pass", "1 attempt: undefined"),
        ([], "1 attempt: undefined"),
    ],
)
def test_the_feedback_is_quoted_as_javascript_writes_it(verdict: Any, ends: str) -> None:
    manifest = flow(looped(max=1), "w")
    values = {"w:agent:1": "o", "l:verify:verify:1": verdict}
    assert run(manifest, answers=values).error["message"] == f"Loop stopped after {ends}"


def test_deep_feedback_is_quoted_too() -> None:
    deep: Any = ["x"]
    for _ in range(800):
        deep = [deep]
    values = {"w:agent:1": "o", "l:verify:verify:1": {"feedback": deep}}
    played = run(flow(looped(max=1), "w"), answers=values)
    assert played.error["message"] == "Loop stopped after 1 attempt: x"


def test_a_loop_that_passes_but_is_told_to_retry_names_no_feedback() -> None:
    manifest = flow(looped(decide=FN, max=1), "w")
    values = body(1, verdict={"pass": True, "feedback": "f"}) | {"l:decide:fn:1": {"retry": 1}}
    assert run(manifest, answers=values).error["message"] == "Loop stopped after 1 attempt"


@pytest.mark.spec("flow-engine:17.20")
def test_a_verdict_without_feedback_leaves_the_next_input_out() -> None:
    values = {name: value for n in (1, 2, 3) for name, value in body(n).items()}
    played = run(MAX, "in", values)
    assert played.input("w:agent:1")["input"] == "in"
    assert "input" not in played.input("w:agent:2")
    assert played.error["message"] == "Loop stopped after 3 attempts: undefined"


def test_a_missing_input_goes_on_missing_through_stages() -> None:
    inner = {"chain": [{"map": {"each": {"agent": "w"}}, "id": "m", "input": FN}]}
    nested = flow({"parallel": {"x": {"tool": {"name": "t"}}}}, name="nested")
    manifest = flow(looped({"parallel": {"i": inner, "n": {"agent": "nested"}}}), "w", nested)
    values = {
        "m:input:fn:1": [],
        "nested/t:tool:1": 1,
        "l:verify:verify:1": {"pass": False},
        "nested/t:tool:2": 2,
        "m:input:fn:2": [],
        "l:verify:verify:2": {"pass": True},
    }
    played = run(manifest, "in", values)
    assert played.output == {"i": [], "n": {"x": 2}}
    assert played.input("m:input:fn:2") == {"results": {}, "flowInput": "in"}
    assert "input" not in played.document("nested/t:tool:2")


@pytest.mark.spec("flow-engine:17.21")
@pytest.mark.parametrize("passes", ["yes", "no", 1, [], {}, True])
def test_any_truthy_pass_passes(passes: Any) -> None:
    assert run(MAX, answers=body(1, "out", {"pass": passes})).output == "out"


def test_a_null_verdict_that_nobody_decides_on_fails_raw() -> None:
    played = run(MAX, answers={"w:agent:1": "o", "l:verify:verify:1": None})
    assert played.code_and_path == ("fn.failed", "top")


VERIFIED = flow(looped(verify={"agent": "v", "input": FN}, decide=FN), "w", "v")


@pytest.mark.spec("flow-engine:17.23")
def test_decide_sees_the_bare_output_of_a_verifier_agent() -> None:
    values = {
        "w:agent:1": "o",
        "v:input:fn:1": "shaped",
        "v:agent:1": marker({"pass": True}, agent("v")),
    }
    played = run(VERIFIED, "in", values)
    assert played.input("v:input:fn:1") == {
        "input": {"task": "in", "response": "o", "iteration": 1},
        "results": {},
        "flowInput": "in",
    }
    assert played.context("v:input:fn:1") == {"role": "input"}
    assert played.input("v:agent:1") == {"agentId": "v", "input": "shaped", "path": "v"}
    assert played.context("v:agent:1") == {"loopPath": "l", "n": 1, "role": "verify-agent"}
    assert played.input("l:decide:fn:1")["verdict"] == {"pass": True}


def test_a_verifier_may_be_a_nested_flow() -> None:
    inner = flow({"agent": "v"}, "v", name="check")
    manifest = flow(looped(verify={"agent": "check"}), "w", inner)
    played = run(manifest, "in", {"w:agent:1": "o", "check/v:agent:1": {"pass": True}})
    assert played.output == "o"
    assert played.context("check/v:agent:1") == {}


def test_a_body_with_an_input_function_shows_it_the_loop() -> None:
    manifest = flow(looped({"agent": "w", "input": FN}), "w")
    played = run(manifest, "in", {"w:input:fn:1": "shaped"})
    assert played.context("w:input:fn:1") == {"role": "input", "loopPath": "l", "n": 1}
    assert played.input("w:agent:1")["input"] == "shaped"


def test_a_loops_own_input_function_shapes_what_it_and_its_functions_get() -> None:
    manifest = flow({**looped(), "input": FN}, "w")
    played = run(manifest, "in", {"l:input:fn:-": "shaped", "w:agent:1": "o"})
    assert played.input("w:agent:1")["input"] == "shaped"
    assert played.input("l:verify:verify:1") == {
        "input": "shaped",
        "output": "o",
        "iteration": 1,
        "results": {},
        "flowInput": "in",
    }


@pytest.mark.spec("flow-engine:17.22")
def test_the_markers_manifest_goes_with_the_retry() -> None:
    ran = agent("w", name="Will")
    played = run(MAX, "in", body(1, marker("o", ran), {"pass": False, "feedback": "f"}))
    assert "manifest" not in played.input("w:agent:1")
    assert played.input("w:agent:2") == {"agentId": "w", "input": "f", "path": "w", "manifest": ran}


def test_a_marker_without_a_manifest_names_none() -> None:
    played = run(MAX, "in", body(1, marker("o", None), {"feedback": "f"}))
    assert "manifest" not in played.input("w:agent:2")


TOOLS = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
SERVERS = {"mcpServers": {"s": {"name": "s", "type": "sse", "url": "http://s"}}}


def capable(**members: Any) -> dict[str, Any]:
    return agent("w", capabilities=[{"id": "c", "type": "agent", **members}])


def decided(pinned: Any, decision: Any, manifest: Any = DECIDES) -> Any:
    first = body(1, "o" if pinned is None else marker("o", pinned))
    return run(manifest, "in", {**first, "l:decide:fn:1": decision})


@pytest.mark.spec("flow-engine:17.24")
@pytest.mark.parametrize(
    ("pinned", "given"),
    [
        (capable(**TOOLS), capable()),
        (capable(**TOOLS), agent("w")),
        (capable(instructions=["A"]), capable(instructions=["B"])),
        (capable(**SERVERS), capable(**SERVERS, instructions=["B"])),
        (capable(hooks=[]), capable()),
        (agent("w", runtime={}), agent("w")),
        (capable(skills={"k": {"name": "k", "description": "d"}}), capable(name="C")),
        (None, agent("anybody")),
    ],
)
def test_a_variant_is_sent_with_the_next_iteration(pinned: Any, given: Any) -> None:
    played = decided(pinned, {"retry": "again", "agent": given})
    assert played.input("w:agent:2")["manifest"] == given


@pytest.mark.spec("flow-engine:17.24")
@pytest.mark.parametrize(
    ("pinned", "given"),
    [
        (capable(**SERVERS), capable()),
        (capable(**SERVERS), agent("w")),
        (capable(), capable(**SERVERS)),
        (capable(sandbox={}), capable()),
        (capable(), capable(sandbox={})),
        (capable(hooks=[{"at": "before", "scope": "turn"}]), capable()),
        (capable(), capable(hooks=[{"at": "before", "scope": "turn"}])),
        (capable(), capable(**TOOLS)),
        (capable(**TOOLS), capable(tools=[{"name": "t", "inputSchema": {}}])),
        (capable(), capable(skills={"k": {"name": "k", "description": "d"}})),
        (capable(), agent("w", capabilities=[{"id": "d", "type": "agent"}])),
        (capable(), agent("w", capabilities=[{"id": "c", "type": "agent-plugin"}])),
        (agent("w"), agent("v")),
        (agent("w"), agent("w", manifestSchemaVersion=5)),
        (agent("w"), "w"),
        (agent("w"), []),
    ],
)
def test_what_is_no_variant_fails_the_loop(pinned: Any, given: Any) -> None:
    assert decided(pinned, {"retry": "again", "agent": given}).code_and_path == ("loop.invalid-agent", "l")


@pytest.mark.spec("flow-engine:17.24")
@pytest.mark.parametrize("stage", [{"chain": [{"agent": "w"}]}, {"agent": "nested"}])
def test_a_body_that_is_not_an_agent_takes_no_other_manifest(stage: Any) -> None:
    nested = flow({"agent": "w"}, "w", name="nested")
    manifest = flow(looped(stage, decide=FN), "w", nested)
    leaf = "nested/w:agent:1" if "agent" in stage else "w:agent:1"
    values = {leaf: "o", "l:verify:verify:1": 1, "l:decide:fn:1": {"retry": 1, "agent": agent("w")}}
    assert run(manifest, answers=values).code_and_path == ("loop.invalid-agent", "l")


def test_a_null_agent_fails_raw_with_a_pin_and_clears_without_one() -> None:
    assert decided(agent("w"), {"retry": 1, "agent": None}).code_and_path == ("fn.failed", "top")
    second = body(2, "o") | {"l:decide:fn:2": {"retry": 2, "agent": None}}
    first = body(1, "o") | {"l:decide:fn:1": {"retry": 1, "agent": agent("x")}}
    played = run(DECIDES, "in", first | second)
    assert played.input("w:agent:2")["manifest"] == agent("x")
    assert "manifest" not in played.input("w:agent:3")


@pytest.mark.parametrize(
    "given", [{"id": "w", "manifestSchemaVersion": 4}, {**agent("w"), "capabilities": 1}]
)
def test_a_manifest_without_capabilities_fails_raw(given: Any) -> None:
    assert decided(agent("w"), {"retry": 1, "agent": given}).code_and_path == ("fn.failed", "top")


def test_an_exhausted_loop_does_not_look_at_the_agent() -> None:
    manifest = flow(looped(decide=FN, max=1), "w")
    played = decided(agent("w"), {"retry": 1, "agent": agent("v")}, manifest)
    assert played.error["code"] == "loop.exhausted"


@pytest.mark.spec("flow-engine:17.25")
@pytest.mark.parametrize("code", ["fn.failed", "endpoint.rejected", "cancelled"])
def test_a_failed_verify_fails_the_loop_with_its_message(code: str) -> None:
    values = {"w:agent:1": "o", "l:verify:verify:1": failed(code, "x")}
    assert run(MAX, answers=values).error == {"code": "loop.verify-failed", "message": "x", "path": "l"}


def test_an_inner_loops_verify_failure_keeps_its_place() -> None:
    values = {"w:agent:1": "o", "l:verify:verify:1": failed("loop.verify-failed", "x", path="deep")}
    assert run(MAX, answers=values).code_and_path == ("loop.verify-failed", "deep")


@pytest.mark.spec("flow-engine:17.26")
@pytest.mark.parametrize(
    ("code", "ends"),
    [("fn.failed", ("loop.stopped", "l")), ("endpoint.rejected", ("endpoint.rejected", "l:decide"))],
)
def test_a_failed_decision_stops_the_loop_unless_the_endpoint_refused(code: str, ends: Any) -> None:
    assert decided(None, failed(code, "x")).code_and_path == ends


@pytest.mark.spec("flow-engine:17.27")
@pytest.mark.parametrize("value", [None, [], "x", {}, 1, {"agent": agent("w")}])
def test_a_decision_without_output_and_retry_is_invalid(value: Any) -> None:
    assert decided(None, value).code_and_path == ("loop.invalid-decision", "l")


@pytest.mark.spec("flow-engine:17.28")
def test_a_decision_with_both_ends_the_loop() -> None:
    assert decided(None, {"output": 1, "retry": 2}).output == 1


@pytest.mark.spec("flow-engine:17.33")
def test_drift_in_a_verify_is_the_loops_and_in_a_decision_it_is_raw() -> None:
    values = {"w:agent:1": "o", "l:verify:verify:1": host_error()}
    assert run(MAX, answers=values).error == {"code": "loop.verify-failed", "message": "drift", "path": "l"}
    assert decided(None, host_error()).code_and_path == ("fn.failed", "top")


def test_a_suspended_verifier_suspends_the_loop() -> None:
    assert run(MAX, answers={"w:agent:1": "o", "l:verify:verify:1": PENDING}).waits_for == {
        "l:verify:verify:1"
    }


def test_the_history_is_what_was_known_when_the_decision_was_asked_for() -> None:
    first = body(1, "o1", {"score": 1}) | {"l:decide:fn:1": {"retry": 1}}
    second = body(2, "o2", {"score": 2}) | {"l:decide:fn:2": {"retry": 2}}
    played = run(DECIDES, "in", first | second)
    assert played.input("l:decide:fn:1")["history"] == []
    assert played.input("l:decide:fn:2")["history"] == [
        {"iteration": 1, "output": "o1", "verdict": {"score": 1}}
    ]


def test_an_abort_while_a_verifier_is_awaited_is_the_loops_failure() -> None:
    played = run(MAX, answers=body(1), abort_at="l:verify:verify:1")
    assert played.error == {"code": "loop.verify-failed", "message": "Turn cancelled", "path": "l"}
    played = run(MAX, answers=body(1), abort_at="w:agent:1")
    assert played.code_and_path == ("fn.failed", "top")


def test_a_loop_in_a_nested_flow_in_a_map_is_named_by_all_of_them() -> None:
    inner = flow(looped(name=None), "w", name="inner")
    manifest = flow({"map": {"each": {"agent": "inner"}}}, inner)
    played = run(manifest, ["x"], {"inner[0]/w:agent:1": "o"})
    assert played.context("inner[0]/w:agent:1") == {"loopPath": "inner/@[0]", "n": 1}
    assert played.waits_for == {"inner/@[0]:verify:verify:1"}
