"""Engine flow-1: names, keys and arguments of version 1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.flow.support import FN, UNCERTAIN, agent, failed, flow1, host_error, marker, run


def slot(run_: Any, **members: Any) -> dict[str, Any]:
    return {"slot": {**members, "run": run_}}


def chain(*steps: Any, name: str = "desk") -> dict[str, Any]:
    return {"chain": {"id": name, "steps": list(steps)}}


def loop(run_: Any = None, verify: Any = None, name: str = "l") -> dict[str, Any]:
    return {"loop": {"id": name, "run": run_ or {"agent": "a"}, "verify": verify or FN, "decide": FN}}


DESK = flow1(chain({"agent": "reader"}, slot({"agent": "answer"}, input=FN), {"tool": {"name": "post"}}))


@pytest.mark.spec("flow-engine:17.5")
def test_a_chain_sends_agent_function_agent_and_tool() -> None:
    values = {
        "desk/reader:agent:-": "read",
        "desk/answer:fn.slot-input:-": "shaped",
        "desk/answer:agent:-": "answered",
        "desk/post:tool:-": {"kind": "completed", "output": "posted"},
    }
    played = run(DESK, "in", values)
    assert played.output == "posted"
    assert played.asked == list(values)
    shape = played.document("desk/answer:fn.slot-input:-")
    assert (shape["kind"], shape["path"], shape["key"]) == ("fn", "desk/answer", "desk/answer/input")
    assert shape["input"] == {"value": "read", "input": "in", "results": {"reader": "read"}}
    assert shape["context"] == {"role": "slot-input"}
    answer = played.document("desk/answer:agent:-")
    assert answer["input"] == {"agentId": "answer", "input": "shaped", "path": "desk/answer"}
    assert (answer["key"], answer["context"]) == ("desk/answer", {})
    post = played.document("desk/post:tool:-")
    assert (post["input"], post["key"], post["context"]) == ("answered", "desk/post", {"toolName": "post"})


@pytest.mark.spec("flow-engine:17.5")
def test_a_chain_whose_input_is_null_shows_the_value_in_its_place() -> None:
    played = run(DESK, None, {"desk/reader:agent:-": "read"})
    assert played.input("desk/answer:fn.slot-input:-")["input"] == "read"


def test_a_slot_names_what_it_holds_and_results_go_by_that_name() -> None:
    manifest = flow1(
        chain(
            slot({"agent": "a"}, id="first"),
            slot(slot({"agent": "b"})),
            slot({"tool": {"name": "t"}}, id="last", input=FN),
        )
    )
    played = run(manifest, "in", {"desk/first:agent:-": 1, "desk/b:agent:-": 2})
    assert played.input("desk/last:fn.slot-input:-") == {
        "value": 2,
        "input": "in",
        "results": {"first": 1, "b": 2},
    }


def test_only_the_slot_right_in_a_stage_sees_that_stages_input() -> None:
    manifest = flow1(chain({"agent": "a"}, slot(slot({"agent": "b"}, input=FN))))
    assert run(manifest, "in", {"desk/a:agent:-": 1}).input("desk/b:fn.slot-input:-")["input"] == 1
    root = run(flow1(slot({"agent": "a"}, input=FN)), "in")
    assert root.input("a:fn.slot-input:-") == {"value": "in", "input": "in", "results": {}}
    cases = {"x": slot({"agent": "a"}, input=FN)}
    switched = run(flow1({"switch": {"id": "s", "on": FN, "cases": cases}}), "in", {"s:fn:-": "x"})
    assert switched.input("s/x:fn.slot-input:-")["input"] == "in"
    branch = flow1({"parallel": {"id": "p", "branches": cases}})
    assert run(branch, "in").input("p/x:fn.slot-input:-")["input"] == "in"


def test_a_map_numbers_its_items_and_its_slots_see_the_index() -> None:
    mapping = {"map": {"id": "pages", "over": FN, "each": slot({"agent": "draft"}, input=FN)}}
    manifest = flow1(chain({"agent": "a"}, mapping))
    values: dict[str, Any] = {"desk/a:agent:-": "A", "desk/pages:fn:-": ["x", "y"]}
    for index in (0, 1):
        values[f"desk/pages[{index}]/draft:fn.slot-input:-"] = f"s{index}"
        values[f"desk/pages[{index}]/draft:agent:-"] = f"d{index}"
    played = run(manifest, "in", values)
    assert played.output == ["d0", "d1"]
    over = played.document("desk/pages:fn:-")
    assert (over["input"], over["key"], over["context"]) == ("A", "desk/pages/over", {"role": "map-over"})
    shape = played.document("desk/pages[1]/draft:fn.slot-input:-")
    assert shape["key"] == "desk/pages/draft/input"
    assert shape["input"] == {"value": "y", "input": "A", "results": {"a": "A"}, "index": 1}
    draft = played.document("desk/pages[1]/draft:agent:-")
    assert (draft["path"], draft["key"]) == ("desk/pages[1]/draft", "desk/pages/draft")


def test_a_list_function_that_gives_no_list_fails_the_map() -> None:
    manifest = flow1({"map": {"id": "m", "over": FN, "each": {"agent": "a"}}})
    assert run(manifest, answers={"m:fn:-": {"items": [1]}}).code_and_path == ("map.not-a-list", "m")


def test_an_empty_parallel_gives_an_empty_object() -> None:
    assert run(flow1({"parallel": {"id": "p", "branches": {}}})).output == {}


# Loops


def test_a_loop_over_a_stage_gives_it_neither_context_nor_manifest() -> None:
    manifest = flow1(loop(slot({"agent": "a"}, input=FN)))
    values = {"l/a:fn.slot-input:1": 1, "l/a:agent:1": marker("o", agent("a")), "l:verify:1": 1}
    played = run(manifest, "in", {**values, "l:fn:1": {"input": "again"}})
    assert played.context("l/a:agent:1") == {}
    assert "agent" not in played.input("l:fn:1")
    # The slot sees the loop's input, and its value is what the decision gave.
    assert played.input("l/a:fn.slot-input:2") == {"value": "again", "input": "in", "results": {}}


def test_nested_loops_number_their_iterations_from_the_outside() -> None:
    inner = loop(name="inner")
    values = {
        "l/inner/a:agent:1.1": 1,
        "l/inner:verify:1.1": 1,
        "l/inner:fn:1.1": {"input": 2},
        "l/inner/a:agent:1.2": 3,
        "l/inner:verify:1.2": 1,
        "l/inner:fn:1.2": {"output": 4},
        "l:verify:1": 5,
        "l:fn:1": {"output": 6},
    }
    played = run(flow1(loop(inner)), "in", values)
    assert (played.output, played.asked) == (6, list(values))
    assert played.document("l/inner/a:agent:1.2")["iterations"] == "1.2"
    assert played.context("l/inner/a:agent:1.2") == {"loopPath": "l/inner", "n": 2}


def test_concurrent_loops_count_each_for_itself() -> None:
    manifest = flow1({"map": {"id": "m", "over": FN, "each": loop()}})
    assert run(manifest, answers={"m:fn:-": [1, 2]}).waits_for == {
        "m[0]/l/a:agent:1",
        "m[1]/l/a:agent:1",
    }


@pytest.mark.spec("flow-engine:17.23")
def test_decide_sees_the_whole_marker_of_a_verifier_agent() -> None:
    verdict = marker({"pass": True}, agent("v"))
    manifest = flow1(loop(verify={"agent": "v"}))
    played = run(manifest, "in", {"l/a:agent:1": "o", "l/v:agent:1": verdict})
    assert played.input("l:fn:1")["verdict"] == verdict
    verifier = played.document("l/v:agent:1")
    assert verifier["input"] == {
        "agentId": "v",
        "input": {"task": "in", "response": "o", "iteration": 1},
        "path": "l/v",
    }
    assert verifier["context"] == {"loopPath": "l", "n": 1, "role": "verify-agent"}


def test_a_verifier_in_a_slot_is_an_ordinary_step() -> None:
    manifest = flow1(loop(verify=slot({"agent": "v"}, id="check")))
    played = run(manifest, "in", {"l/a:agent:1": "o", "l/check:agent:1": marker("fine", agent("v"))})
    assert played.context("l/check:agent:1") == {}
    assert played.input("l/check:agent:1")["input"] == {"task": "in", "response": "o", "iteration": 1}
    assert played.input("l:fn:1")["verdict"] == "fine"


@pytest.mark.spec("flow-engine:17.25")
@pytest.mark.parametrize("code", ["fn.failed", "endpoint.rejected"])
def test_a_failed_verifier_fails_the_loop(code: str) -> None:
    values = {"l/a:agent:1": "o", "l:verify:1": failed(code, "x")}
    assert run(flow1(loop()), answers=values).error == {
        "code": "loop.verify-failed",
        "message": "x",
        "path": "l",
    }
    values = {"l/a:agent:1": "o", "l/v:agent:1": failed(code, "x")}
    assert run(flow1(loop(verify={"agent": "v"})), answers=values).code_and_path == (
        "loop.verify-failed",
        "l",
    )


def test_a_raw_error_of_a_verify_function_stays_raw_and_one_of_a_verifier_does_not() -> None:
    drift = host_error()
    raw = run(flow1(loop()), answers={"l/a:agent:1": "o", "l:verify:1": drift})
    assert raw.error == {"code": "fn.failed", "message": "drift", "path": "l"}
    mapped = run(flow1(loop(verify={"agent": "v"})), answers={"l/a:agent:1": "o", "l/v:agent:1": drift})
    assert mapped.code_and_path == ("loop.verify-failed", "l")


def test_a_verifiers_own_failed_loop_is_named_by_the_outer_one_unless_a_function_said_it() -> None:
    again = failed("loop.verify-failed", "inner", path="deep")
    kept = run(flow1(loop()), answers={"l/a:agent:1": "o", "l:verify:1": again})
    assert kept.code_and_path == ("loop.verify-failed", "deep")
    mapped = run(flow1(loop(verify={"agent": "v"})), answers={"l/a:agent:1": "o", "l/v:agent:1": again})
    assert mapped.code_and_path == ("loop.verify-failed", "l")


@pytest.mark.spec("flow-engine:17.26")
def test_a_failed_decision_stops_the_loop_unless_the_endpoint_refused() -> None:
    body = {"l/a:agent:1": "o", "l:verify:1": 1}
    stopped = run(flow1(loop()), answers={**body, "l:fn:1": failed("fn.failed", "x")})
    assert stopped.error == {"code": "loop.stopped", "message": "x", "path": "l"}
    refused = run(flow1(loop()), answers={**body, "l:fn:1": failed("endpoint.rejected", "401")})
    assert refused.error == {"code": "endpoint.rejected", "message": "401", "path": "l"}


@pytest.mark.spec("flow-engine:17.33")
def test_drift_in_a_decision_stops_the_loop() -> None:
    body = {"l/a:agent:1": "o", "l:verify:1": 1, "l:fn:1": host_error()}
    assert run(flow1(loop()), answers=body).error == {
        "code": "loop.stopped",
        "message": "drift",
        "path": "l",
    }


@pytest.mark.spec("flow-engine:17.27")
@pytest.mark.parametrize("value", [None, [], "x", {}, 1, {"agent": {}}])
def test_a_decision_that_is_none_fails_raw(value: Any) -> None:
    values = {"top/l/a:agent:1": "o", "top/l:verify:1": 1, "top/l:fn:1": value}
    played = run(flow1(chain(loop(), name="top")), answers=values)
    assert played.code_and_path == ("fn.failed", "top")


@pytest.mark.spec("flow-engine:17.28")
def test_a_decision_with_both_retries() -> None:
    values = {"l/a:agent:1": "o", "l:verify:1": 1, "l:fn:1": {"output": 1, "input": 2}}
    assert run(flow1(loop()), answers=values).input("l/a:agent:2")["input"] == 2


@pytest.mark.spec("flow-engine:17.22")
def test_the_markers_manifest_goes_with_the_next_iteration() -> None:
    ran = agent("a", name="Ann")
    values = {"l/a:agent:1": marker("o", ran), "l:verify:1": 1, "l:fn:1": {"input": 2}}
    played = run(flow1(loop()), "in", values)
    assert played.input("l/a:agent:1") == {"agentId": "a", "input": "in", "path": "l/a"}
    assert played.input("l/a:agent:2")["manifest"] == ran
    assert played.input("l:fn:1") == {
        "output": "o",
        "verdict": 1,
        "iteration": 1,
        "input": "in",
        "history": [],
        "agent": ran,
    }
    assert played.document("l:fn:1")["key"] == "l/decide"
    assert played.context("l:fn:1") == {"loopPath": "l", "n": 1, "role": "decide"}


@pytest.mark.spec("flow-engine:17.24")
def test_a_loop_over_a_stage_takes_no_agent() -> None:
    values = {"l/desk/a:agent:1": "o", "l:verify:1": 1, "l:fn:1": {"input": 2, "agent": agent("a")}}
    assert run(flow1(loop(chain({"agent": "a"}))), answers=values).code_and_path == (
        "loop.invalid-agent",
        "l",
    )


# Which failure wins


def fails(code: str, **members: Any) -> Any:
    return failed(code, code, **members)


def test_in_a_map_the_failure_with_the_lowest_index_in_its_path_wins() -> None:
    manifest = flow1({"map": {"id": "m", "over": FN, "each": {"agent": "a"}}})
    ids = [f"m[{index}]/a:agent:-" for index in range(3)]
    values = {"m:fn:-": [1, 2, 3]} | dict(zip(ids, map(fails, ("c0", "c1", "c2")), strict=True))
    last_first = run(manifest, answers=values, choose=lambda waiting: len(waiting) - 1)
    assert last_first.error["code"] == "c0"
    # A path of the application's own decides; without an index it comes last.
    values[ids[0]] = fails("c0", path="nowhere")
    assert run(manifest, answers=values).error["code"] == "c1"
    values[ids[2]] = fails("c2", path="x[0]")
    assert run(manifest, answers=values).error["code"] == "c2"
    values[ids[2]] = fails("c2", path=f"x[{'9' * 5000}]")
    assert run(manifest, answers=values).error["code"] == "c1"


def test_in_a_parallel_a_branch_is_known_by_a_part_of_the_path() -> None:
    branches = {"a": {"agent": "x"}, "ab": {"agent": "y"}}
    manifest = flow1({"parallel": {"id": "p", "branches": branches}})
    values = {"p/a:agent:-": fails("one"), "p/ab:agent:-": fails("two")}
    assert run(manifest, answers=values).error["code"] == "one"
    # Both paths hold "/a", so the one that came first wins.
    assert run(manifest, answers=values, choose=lambda waiting: len(waiting) - 1).error["code"] == "two"
    values["p/a:agent:-"] = fails("one", path="nowhere")
    assert run(manifest, answers=values).error["code"] == "two"


def test_a_raw_error_stands_at_its_branch() -> None:
    branches = {"x": chain({"agent": "a"}), "y": {"agent": "b"}}
    manifest = flow1({"parallel": {"id": "p", "branches": branches}})
    played = run(manifest, answers={"p/x/a:agent:-": host_error(), "p/y:agent:-": UNCERTAIN})
    assert played.code_and_path == ("fn.failed", "p/x")
    assert played.cancels == {"p/y:agent:-"}
    manifest = flow1({"map": {"id": "m", "over": FN, "each": {"agent": "a"}}})
    played = run(manifest, answers={"m:fn:-": [1, 2], "m[0]/a:agent:-": 1, "m[1]/a:agent:-": host_error()})
    assert played.code_and_path == ("fn.failed", "m[1]/a")
