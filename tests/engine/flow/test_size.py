"""Deep and large workflows: they run, in bounded time, and nothing takes Python's stack."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.engine.contract import EngineRefused, RecordedOutcome
from tests.engine.flow.support import FN, agent, checkpoint, flow, flow1, marker, run

DEEPEST = 200


def wrapped(kind: str, node: Any, level: int) -> Any:
    match kind:
        case "chain":
            return {"chain": [node]}
        case "switch":
            return {"switch": {"on": FN, "cases": {"x": node}}}
        case "parallel":
            return {"parallel": {"x": node}}
        case "map":
            return {"map": {"each": node}, "input": FN}
        case _:
            return {"loop": {"run": node, "verify": FN, "max": 1}}


def deep(kind: str, levels: int) -> dict[str, Any]:
    node: Any = {"agent": "a"}
    for level in range(levels - 1):
        node = wrapped(kind, node, level)
    return flow(node, "a")


def nested(levels: int) -> dict[str, Any]:
    inner: Any = flow({"tool": {"name": "t"}}, name=f"f{levels}")
    for level in range(levels - 1, 0, -1):
        inner = flow({"agent": inner["id"]}, inner, name=f"f{level}")
    return dict(inner)


def answer(effect: Any) -> Any:
    role = effect.document["context"].get("role")
    return {"on": "x", "input": [1], "verify": {"pass": True}}.get(role, "out")


@pytest.mark.parametrize("kind", ["chain", "switch", "parallel", "map", "loop"])
def test_stages_nest_two_hundred_deep(kind: str) -> None:
    played = run(deep(kind, DEEPEST), "in", answer)
    assert played.result.status == "completed"
    failing = run(
        deep(kind, DEEPEST),
        "in",
        lambda e: answer(e) if e.kind != "agent" else {"kind": "failed", "code": "x"},
    )
    assert failing.error["code"] == "x"
    assert run(deep(kind, DEEPEST)).result.status == "waiting"


def test_flows_in_flows_are_counted_through() -> None:
    manifest = nested(DEEPEST)
    assert run(manifest, "in", answer).output == "out"
    with pytest.raises(EngineRefused, match="200 deep") as refused:
        run(nested(DEEPEST + 1))
    assert refused.value.code is None
    assert ".agents.f201.root" in refused.value.message


@pytest.mark.parametrize("kind", ["chain", "switch", "parallel", "map", "loop"])
def test_a_deeper_stage_is_refused_with_its_path(kind: str) -> None:
    with pytest.raises(EngineRefused, match="200 deep") as refused:
        run(deep(kind, DEEPEST + 1))
    step = {"chain": ".chain[0]", "switch": ".switch.cases.x", "parallel": ".parallel.x"}
    way = step.get(kind) or {"map": ".map.each", "loop": ".loop.run"}[kind]
    assert f"root{way * DEEPEST}:" in refused.value.message


def test_version_one_nests_as_deep_slots_counted() -> None:
    node: Any = {"agent": "a"}
    for level in range(DEEPEST - 1):
        chain = {"chain": {"id": f"c{level}", "steps": [node]}}
        node = chain if level % 2 else {"slot": {"run": node, "input": FN}}
    assert run(flow1(node), "in", answer).output == "out"
    with pytest.raises(EngineRefused, match="200 deep"):
        run(flow1({"slot": {"run": node}}))


def test_values_nest_as_deep_as_documents_can() -> None:
    value: Any = "x"
    for _ in range(880):
        value = [value]
    steps = [{"agent": "a"}, {"tool": {"name": "t"}, "input": FN}]
    assert run(flow({"chain": steps}, "a"), "in", lambda _: value).output == value
    pinned = agent(
        "a", capabilities=[{"id": "c", "type": "agent", "tools": [{"name": "t", "inputSchema": value}]}]
    )
    loop = {"loop": {"run": {"agent": "a"}, "verify": FN, "decide": FN}, "id": "l"}
    values = {
        "a:agent:1": marker(value, pinned),
        "l:verify:verify:1": 1,
        "l:decide:fn:1": {"retry": value, "agent": pinned},
    }
    assert run(flow(loop, "a"), "in", values).waits_for == {"a:agent:2"}


TWO_STAGES = flow({"map": {"each": {"chain": [{"agent": "a"}, {"agent": "b"}]}}}, *"ab")


def test_a_thousand_items_of_two_stages_run_and_replay_in_no_time() -> None:
    items = [f"item {index}" for index in range(1000)]
    begun = time.process_time()
    played = run(TWO_STAGES, items, lambda effect: marker("text", agent("a")), plain=True)
    assert len(played.effects) == 2000
    outcomes = [
        RecordedOutcome(one.effect_id, one.request_hash, {"value": marker("text", agent("a"))}, True)
        for one in played.effects
    ]
    again = run(TWO_STAGES, items, outcomes=outcomes, plain=True)
    assert (again.new, again.output) == ([], played.output)
    # Each takes less than a tenth of a second; this bound only finds what grows with the square.
    assert time.process_time() - begun < 5


def test_a_hundred_thousand_nodes_are_checked_in_time() -> None:
    steps = [{"agent": "a", "id": f"s{index}"} for index in range(100_000)]
    manifest = flow({"chain": steps}, "a")
    begun = time.process_time()
    assert run(manifest, check=checkpoint(manifest)).waits_for == {"s0:agent:-"}
    assert time.process_time() - begun < 20
