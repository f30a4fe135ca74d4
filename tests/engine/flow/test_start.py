"""What a segment starts from: manifests, checkpoints, limits, an abort that comes first."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import ABSENT, EngineRefused, SegmentResult
from tests.engine.flow.support import FN, PENDING, checkpoint, flow, flow1, run

LEAF = flow({"agent": "a"}, "a")
LEAF1 = flow1({"agent": "a"})


def refused(manifest: Any, **changes: Any) -> EngineRefused:
    check = checkpoint({"workflowSchemaVersion": 2, **manifest}) | changes
    with pytest.raises(EngineRefused) as found:
        run(manifest, check=check)
    return found.value


@pytest.mark.spec("flow-engine:17.1")
@pytest.mark.parametrize(("manifest", "other"), [(LEAF1, "flow-2"), (LEAF, "flow-1"), (LEAF, "hosted-3")])
def test_a_checkpoint_of_another_engine_is_refused(manifest: Any, other: str) -> None:
    assert refused(manifest, engineVersion=other).code == "execution.incompatible"


@pytest.mark.spec("flow-engine:17.2")
def test_a_checkpoint_of_another_manifest_is_refused() -> None:
    assert refused(LEAF, manifestHash=checkpoint(LEAF1)["manifestHash"]).code == "execution.incompatible"


@pytest.mark.parametrize(
    "changes",
    [{"version": 2}, {"version": True}, {"version": "1"}, {"sessionId": 1}, {"turnId": ""}, {"segment": -1}],
)
def test_any_other_malformed_checkpoint_is_refused_the_same_way(changes: Any) -> None:
    assert refused(LEAF, **changes).code == "execution.incompatible"


@pytest.mark.spec("flow-engine:17.3")
@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (flow({"agent": "gone"}, "a"), "root.agent"),
        (flow({"loop": {"run": {"agent": "a"}, "verify": FN}}, "a"), "root.loop"),
        (flow({"parallel": {}}), "root.parallel"),
        ({**LEAF, "workflowSchemaVersion": 3}, "workflowSchemaVersion"),
        ({**LEAF, "extra": 1}, "extra"),
        (flow1({"chain": {"id": "c", "steps": []}}), "root.chain.steps"),
        ({"kind": "workflow"}, "workflowSchemaVersion"),
    ],
)
def test_an_invalid_manifest_is_refused_without_a_code(manifest: Any, said: str) -> None:
    error = refused(manifest)
    assert error.code is None
    assert said in error.message


@pytest.mark.spec("flow-engine:17.4")
@pytest.mark.parametrize("manifest", [LEAF, LEAF1])
def test_a_run_that_was_aborted_before_asks_for_nothing(manifest: Any) -> None:
    played = run(manifest, abort_first=True)
    assert (played.asked, played.result) == ([], SegmentResult("cancelled"))


def test_an_abort_does_not_come_before_the_checks() -> None:
    with pytest.raises(EngineRefused):
        run(LEAF, check=checkpoint(LEAF, version=2), abort_first=True)


def test_every_effect_says_whose_it_is() -> None:
    document = run(LEAF, {"x": 1}).document("a:agent:-")
    assert document == {
        "effectId": "T1:0:flow:a:agent:-",
        "sessionId": "S1",
        "turnId": "T1",
        "agentId": "top",
        "manifestHash": checkpoint(LEAF)["manifestHash"],
        "kind": "agent",
        "path": "a",
        "key": "a",
        "iterations": "-",
        "input": {"agentId": "a", "input": {"x": 1}, "path": "a"},
        "context": {},
    }


def test_an_input_that_is_missing_is_left_out_and_null_is_not() -> None:
    assert run(LEAF, None).input("a:agent:-")["input"] is None
    check = checkpoint(LEAF)
    del check["input"]
    assert run(LEAF, check=check).input("a:agent:-") == {"agentId": "a", "path": "a"}


def test_an_output_of_null_is_an_output() -> None:
    result = run(LEAF, answers={"a:agent:-": None}).result
    assert (result.status, result.output) == ("completed", None)
    assert (result.state, result.transcript, result.error, result.pending) == (None, None, ABSENT, ABSENT)


MAP = flow({"map": {"each": {"agent": "a"}}, "id": "m"}, "a")
LOOP = flow({"loop": {"run": {"agent": "a"}, "verify": FN, "decide": FN}, "id": "l"}, "a")


def retries(effect: Any) -> Any:
    return {"retry": 1} if effect.kind == "fn" else 1


@pytest.mark.spec("flow-engine:17.36")
@pytest.mark.parametrize(
    "limits",
    [
        None,
        {},
        {"maxMapItems": None, "maxLoopIterations": None},
        {"maxConcurrency": 1},
        "odd",
        {"maxMapItems": "odd"},
    ],
)
def test_limits_that_are_missing_or_null_are_a_thousand_items_and_a_hundred_iterations(limits: Any) -> None:
    played = run(MAP, list(range(1000)), limits=limits)
    # Whatever core's own concurrency is, all items are asked for at once.
    assert len(played.waits_for) == 1000
    assert run(MAP, list(range(1001)), limits=limits).code_and_path == ("map.too-many-items", "m")
    looped = run(LOOP, 1, retries, limits=limits)
    assert looped.code_and_path == ("loop.too-many-iterations", "l")
    assert len(looped.asked) == 300


def test_a_limit_of_zero_allows_nothing_but_an_empty_list() -> None:
    limits = {"maxMapItems": 0, "maxLoopIterations": 0}
    assert run(MAP, [], limits=limits).output == []
    assert run(MAP, [1], limits=limits).code_and_path == ("map.too-many-items", "m")
    looped = run(LOOP, 1, retries, limits=limits)
    assert (looped.asked, looped.code_and_path) == ([], ("loop.too-many-iterations", "l"))


@pytest.mark.spec("flow-engine:17.13")
def test_a_map_over_too_many_items_starts_none() -> None:
    shaped = flow({"map": {"each": {"agent": "a"}}, "id": "m", "input": FN}, "a")
    given = {"m:input:fn:-": [1, 2, 3]}
    played = run(shaped, 1, given, limits={"maxMapItems": 2})
    assert (played.asked, played.code_and_path) == (["m:input:fn:-"], ("map.too-many-items", "m"))
    played = run(shaped, 1, {"m:input:fn:-": []})
    assert (played.asked, played.output) == (["m:input:fn:-"], [])
    over = flow1({"map": {"id": "m", "over": FN, "each": {"agent": "a"}}})
    played = run(over, 1, {"m:fn:-": [1, 2, 3]}, limits={"maxMapItems": 2})
    assert (played.asked, played.code_and_path) == (["m:fn:-"], ("map.too-many-items", "m"))
    played = run(over, 1, {"m:fn:-": []})
    assert (played.asked, played.output) == (["m:fn:-"], [])


@pytest.mark.spec("flow-engine:17.16")
@pytest.mark.parametrize("version", [1, 2])
def test_a_loop_that_always_retries_stops_at_the_operators_limit(version: int) -> None:
    one = flow1({"loop": {"id": "l", "run": {"agent": "a"}, "verify": FN, "decide": FN}})
    word = "input" if version == 1 else "retry"
    played = run(
        one if version == 1 else LOOP,
        1,
        lambda effect: {word: 1} if effect.kind == "fn" else 1,
        limits={"maxLoopIterations": 3},
    )
    assert [name for name in played.asked if ":agent:" in name] == [
        f"{'l/' if version == 1 else ''}a:agent:{n}" for n in (1, 2, 3)
    ]
    assert played.code_and_path == ("loop.too-many-iterations", "l")


def test_the_answer_pending_is_waited_for() -> None:
    assert run(LEAF, answers={"a:agent:-": PENDING}).result == SegmentResult(
        "waiting", effect_ids=("T1:0:flow:a:agent:-",)
    )
