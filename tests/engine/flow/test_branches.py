"""Parallel, map and nested flows of version 2: names, order, fail-fast."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import Pending
from protocol import jsjson
from tests.engine.flow.support import (
    CANCEL,
    FN,
    PENDING,
    UNCERTAIN,
    aborted,
    agent,
    checkpoint,
    failed,
    flow,
    host_error,
    record,
    run,
)


def three(**branches: Any) -> dict[str, Any]:
    return flow({"parallel": branches, "id": "p"}, *"abc")


ABC = three(a={"agent": "a"}, b={"agent": "b"}, c={"agent": "c"})


@pytest.mark.spec("flow-engine:17.9")
@pytest.mark.parametrize("choose", [lambda _: 0, lambda waiting: len(waiting) - 1])
def test_a_failed_branch_ends_the_stage_and_cancels_what_is_pending(choose: Any) -> None:
    values = {"a:agent:-": 1, "b:agent:-": failed("agent.failed", "no"), "c:agent:-": PENDING}
    played = run(ABC, answers=values, choose=choose)
    assert played.error == {"code": "agent.failed", "message": "no", "path": "b"}
    assert played.cancels == {"c:agent:-"}


def test_a_failure_alone_cancels_nothing() -> None:
    values = {"a:agent:-": 1, "b:agent:-": failed("x"), "c:agent:-": 1}
    assert run(ABC, answers=values).result.cancel_effect_ids == ()


@pytest.mark.spec("flow-engine:17.10")
def test_uncertain_beside_pending_is_uncertain_and_names_both() -> None:
    played = run(ABC, answers={"a:agent:-": UNCERTAIN, "b:agent:-": PENDING, "c:agent:-": 1})
    assert played.result.status == "uncertain"
    assert played.waits_for == {"a:agent:-", "b:agent:-"}


@pytest.mark.spec("flow-engine:17.11")
def test_branches_go_in_javascripts_order_of_keys() -> None:
    manifest = jsjson.loads(
        jsjson.dumps(three(**{"b": {"agent": "a"}, "10": {"agent": "b"}, "2": {"agent": "c"}}))
    )
    values = {"a:agent:-": 1, "b:agent:-": 2, "c:agent:-": 3}
    played = run(manifest, answers=values)
    assert played.asked == ["c:agent:-", "b:agent:-", "a:agent:-"]
    assert list(played.output.items()) == [("2", 3), ("10", 2), ("b", 1)]
    values = {"a:agent:-": failed("of b"), "b:agent:-": failed("of 10"), "c:agent:-": 1}
    for choose in (lambda _: 0, lambda waiting: len(waiting) - 1):
        assert run(manifest, answers=values, choose=choose).error["code"] == "of 10"


def test_the_order_of_branches_does_not_depend_on_who_parsed_the_manifest() -> None:
    manifest = three(**{"b": {"agent": "a"}, "10": {"agent": "b"}, "2": {"agent": "c"}})
    assert run(manifest).asked == ["c:agent:-", "b:agent:-", "a:agent:-"]


def test_a_raw_error_stands_at_the_parallel_or_at_the_item() -> None:
    values = {"a:agent:-": 1, "b:agent:-": host_error("down", "internal"), "c:agent:-": 1}
    assert run(ABC, answers=values).error == {"code": "fn.failed", "message": "down", "path": "p"}
    mapped = flow({"map": {"each": {"agent": "a"}}, "id": "m"}, "a")
    played = run(mapped, [1, 2], {"a[0]:agent:-": 1, "a[1]:agent:-": host_error("down")})
    assert played.error == {"code": "fn.failed", "message": "down", "path": "m[1]"}


def test_a_cancelled_branch_is_a_failure_that_can_lose() -> None:
    values = {"a:agent:-": failed("x"), "b:agent:-": failed("cancelled"), "c:agent:-": PENDING}
    played = run(ABC, answers=values)
    assert (played.error["code"], played.cancels) == ("x", {"c:agent:-"})
    values = {"a:agent:-": failed("cancelled"), "b:agent:-": failed("x"), "c:agent:-": PENDING}
    result = run(ABC, answers=values).result
    assert (result.status, result.cancel_effect_ids) == ("cancelled", ())


NESTED = flow(
    {
        "parallel": {
            "a": {"agent": "a"},
            "in": {"parallel": {"b": {"agent": "b"}, "c": {"agent": "c"}}},
            "late": {"chain": [{"agent": "d"}, {"agent": "e"}]},
        }
    },
    *"abcde",
)


def test_what_became_pending_since_joins_the_cancelled_when_the_outer_stage_fails_too() -> None:
    values = {
        "a:agent:-": PENDING,
        "b:agent:-": failed("x"),
        "c:agent:-": UNCERTAIN,
        "d:agent:-": 1,
        "e:agent:-": PENDING,
    }
    played = run(NESTED, answers=values)
    assert played.code_and_path == ("x", "b")
    assert played.cancels == {"a:agent:-", "c:agent:-", "e:agent:-"}


def test_an_effect_that_was_given_up_is_not_asked_for_again() -> None:
    manifest = flow(
        {
            "parallel": {
                "in": {"parallel": {"b": {"agent": "b"}, "x": {"agent": "x"}}},
                "late": {"chain": [{"agent": "d"}, {"agent": "b"}]},
            }
        },
        *"bdx",
    )
    order = iter(["b:agent:-", "x:agent:-", "d:agent:-"])

    def choose(waiting: Any) -> int:
        names = [effect.effect_id.removeprefix("T1:0:flow:") for effect in waiting]
        return names.index(next(order))

    values = {"b:agent:-": PENDING, "x:agent:-": failed("x"), "d:agent:-": 1}
    played = run(manifest, answers=values, choose=choose)
    assert played.asked == ["b:agent:-", "x:agent:-", "d:agent:-"]
    assert played.error["code"] == "x"
    assert played.cancels == {"b:agent:-"}


@pytest.mark.spec("flow-engine:17.19")
def test_two_leaves_of_one_name_with_one_input_share_one_outcome() -> None:
    manifest = flow({"parallel": {"x": {"agent": "a"}, "y": {"agent": "a"}}}, "a")
    first = run(manifest, "in")
    assert first.asked == ["a:agent:-", "a:agent:-"]
    assert first.waits_for == {"a:agent:-"}
    assert first.effects[0] == first.effects[1]
    outcomes = record(first, {"a:agent:-": "out"})
    played = run(manifest, "in", outcomes=outcomes)
    assert (played.known, played.output) == ([True, True], {"x": "out", "y": "out"})


def test_in_a_chain_they_share_it_too_when_it_came_in_this_run() -> None:
    manifest = flow({"chain": [{"agent": "a"}, {"agent": "a"}]}, "a")
    played = run(manifest, "same", {"a:agent:-": "same"})
    assert (played.asked, played.output) == (["a:agent:-", "a:agent:-"], "same")


# Maps


@pytest.mark.spec("flow-engine:17.12")
@pytest.mark.parametrize("given", [{"items": [1]}, "text", None, 1])
def test_a_map_takes_a_list_only(given: Any) -> None:
    manifest = flow({"map": {"each": {"agent": "a"}}}, "a")
    assert run(manifest, given).code_and_path == ("map.not-a-list", "@")


@pytest.mark.spec("flow-engine:17.14")
def test_nested_maps_number_leaves_and_inner_sites() -> None:
    inner = {"map": {"each": {"agent": "t"}}, "input": FN}
    manifest = flow({"chain": [{"map": {"each": inner}}]}, "t")
    values: dict[str, Any] = {"@0.each[0]:input:fn:-": [7, 8], "@0.each[1]:input:fn:-": [9]}
    values |= {"t[0][0]:agent:-": 1, "t[0][1]:agent:-": 2, "t[1][0]:agent:-": 3}
    played = run(manifest, [[7, 8], [9]], values)
    assert played.output == [[1, 2], [3]]
    assert set(played.asked) == set(values)
    assert {played.document(name)["key"] for name in played.asked if name.startswith("t")} == {"t"}
    assert played.document("@0.each[1]:input:fn:-")["key"] == "@0.each:input"


@pytest.mark.spec("flow-engine:17.15")
def test_a_map_sends_a_stage_of_all_items_before_the_next_one() -> None:
    manifest = flow({"map": {"each": {"chain": [{"agent": "a"}, {"agent": "b"}]}}}, *"ab")
    played = run(manifest, [1, 2], lambda effect: effect.effect_id)
    assert played.asked == ["a[0]:agent:-", "a[1]:agent:-", "b[0]:agent:-", "b[1]:agent:-"]
    values = {name: name for name in played.asked}
    again = run(manifest, [1, 2], outcomes=record(run(manifest, [1, 2]), values))
    assert again.asked == ["a[0]:agent:-", "a[1]:agent:-", "b[0]:agent:-", "b[1]:agent:-"]


# Nested flows


DOSSIER = flow(
    {"chain": [{"agent": "fetch"}, {"map": {"each": {"agent": "page"}}, "input": FN}]},
    "fetch",
    "page",
    name="dossier",
)


@pytest.mark.spec("flow-engine:17.31")
def test_a_nested_flow_in_a_map_names_everything_by_item() -> None:
    manifest = flow({"map": {"each": {"agent": "dossier"}}}, DOSSIER)
    values = {
        "dossier[0]/fetch:agent:-": 0,
        "dossier[1]/fetch:agent:-": 1,
        "dossier/@1[0]:input:fn:-": [],
        "dossier/@1[1]:input:fn:-": ["p", "q"],
        "dossier[1]/page[0]:agent:-": "P",
        "dossier[1]/page[1]:agent:-": "Q",
    }
    played = run(manifest, ["first", "second"], values)
    assert played.output == [[], ["P", "Q"]]
    assert set(played.asked) == set(values)
    fetch = played.document("dossier[1]/fetch:agent:-")
    assert (fetch["agentId"], fetch["key"]) == ("top", "dossier/fetch")
    assert fetch["input"] == {
        "agentId": "fetch",
        "input": "second",
        "path": "dossier[1]/fetch",
        "flow": ["dossier"],
    }
    shape = played.document("dossier/@1[1]:input:fn:-")
    assert shape["key"] == "dossier/@1:input"
    assert shape["input"] == {"input": 1, "results": {"fetch": 1}, "flowInput": "second"}
    page = played.document("dossier[1]/page[1]:agent:-")
    assert (page["key"], page["path"]) == ("dossier/page", "dossier[1]/page[1]")


def test_a_nested_flow_gets_the_reshaped_input_and_results_of_its_own() -> None:
    inner = flow({"tool": {"name": "t"}, "input": FN}, name="inner")
    manifest = flow({"chain": [{"agent": "a"}, {"agent": "inner", "id": "nest", "input": FN}]}, "a", inner)
    played = run(manifest, "in", {"a:agent:-": 1, "nest:input:fn:-": "shaped"})
    assert played.input("nest:input:fn:-") == {"input": 1, "results": {"a": 1}, "flowInput": "in"}
    assert played.input("nest/t:input:fn:-") == {"input": "shaped", "results": {}, "flowInput": "shaped"}


def test_flows_nest_in_flows() -> None:
    innermost = flow({"agent": "a"}, "a", name="two")
    middle = flow({"agent": "two", "id": "m"}, innermost, name="one")
    played = run(flow({"agent": "one"}, middle), "in")
    assert played.input("one/m/a:agent:-")["flow"] == ["one", "two"]


# Aborts


def test_branches_after_an_abort_ask_for_nothing_more() -> None:
    manifest = flow(
        {"parallel": {"x": {"chain": [{"agent": "a"}, {"agent": "b"}]}, "y": {"agent": "c"}}}, *"abc"
    )
    played = run(manifest, "in", {"a:agent:-": 1}, abort_at="c:agent:-", choose=lambda w: len(w) - 1)
    # The branch that was awaiting failed raw, the other one was cancelled before its next effect.
    assert played.asked == ["a:agent:-", "c:agent:-"]
    assert played.result.status == "cancelled"


def test_an_abort_and_a_suspension_fail_the_stage() -> None:
    values = {"a:agent:-": PENDING, "b:agent:-": aborted(), "c:agent:-": Pending()}
    played = run(ABC, answers=values)
    assert played.error == {"code": "fn.failed", "message": CANCEL.message, "path": "p"}
    assert played.cancels == {"a:agent:-", "c:agent:-"}


def test_names_of_any_script_and_numbers_of_any_kind_pass() -> None:
    manifest = flow({"parallel": {"é": {"agent": "ä", "id": "x[1]"}, "1": {"agent": "ä"}}}, agent("ä"))
    played = run(manifest, {"ü": 0.1, "n": 2**60}, {"x[1]:agent:-": 1e21, "ä:agent:-": "\ud83d"})
    assert played.output == {"1": "\ud83d", "é": 1e21}
    slow, fast = (run(manifest, 0.5, plain=plain) for plain in (False, False))
    assert slow.hashes == fast.hashes
    assert checkpoint(manifest)["engineVersion"] == "flow-2"
