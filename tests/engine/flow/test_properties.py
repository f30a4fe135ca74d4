"""Whatever the workflow and the order of answers: the same effects, ids and result, also from any prefix."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.engine.contract import EffectRequest, Pending, RecordedOutcome
from tests.engine.flow.support import FN, Played, agent, flow, flow1, marker, run

LIMITS = {"maxMapItems": 3, "maxLoopIterations": 3}
NAMES = ["a", "b", "c", "ä", "10"]
LEAVES = st.one_of(
    st.builds(lambda name: {"agent": name}, st.sampled_from([*NAMES, "nested"])),
    st.builds(lambda name: {"tool": {"name": name}}, st.sampled_from(NAMES)),
)


def _stages(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.dictionaries(st.sampled_from(["x", "7", "y", "é"]), inner, min_size=1, max_size=3)
    verify = st.sampled_from([FN, {"agent": "a"}, {"agent": "nested"}])
    ends = st.sampled_from([{"max": 2}, {"decide": FN}, {"max": 2, "decide": FN}])
    shapes = st.one_of(
        st.builds(lambda steps: {"chain": steps}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda cases: {"switch": {"on": FN, "cases": cases}}, branches),
        st.builds(lambda cases: {"parallel": cases}, branches),
        st.builds(lambda each: {"map": {"each": each}, "input": FN}, inner),
        st.builds(
            lambda body, check, end: {"loop": {"run": body, "verify": check, **end}}, inner, verify, ends
        ),
    )
    return st.builds(
        lambda node, id_, shaped: {
            **node,
            **({"id": id_} if id_ else {}),
            **({"input": FN} if shaped else {}),
        },
        shapes,
        st.sampled_from(["", "", "s", "t"]),
        st.booleans(),
    )


NODES = st.recursive(LEAVES, _stages, max_leaves=6)
SEEDS = st.integers(0, 2**32)
NESTED = flow({"chain": [{"agent": "a"}, {"tool": {"name": "t"}, "input": FN}]}, "a", name="nested")


def workflow(root: Any) -> dict[str, Any]:
    return flow(root, *NAMES, NESTED)


def outcome(effect: EffectRequest, seed: int) -> Any:
    """What core would record for an effect: by its id and its hash alone, so the same in every run."""
    rng = random.Random(f"{seed} {effect.effect_id} {effect.request_hash}")
    context: Any = effect.document["context"]
    if rng.random() < 0.06:
        return {"kind": "failed", "code": "fn.failed" if effect.kind == "fn" else "x.y", "message": "m"}
    match context.get("role"):
        case "input":
            return rng.choice([[1, 2], ["one"], [], {"shaped": rng.random()}])
        case "on":
            return rng.choice(["x", "7", "y", "é", 3])
        case "decide":
            return rng.choice([{"output": 1}, {"retry": 2}, {"retry": 0.5, "agent": agent("a")}, {}])
        case "verify" | "verify-agent":
            return {"pass": rng.random() < 0.4, "feedback": rng.choice(["more", 1.5, None])}
    value = rng.choice(["text", {"n": 1}, [1.25], None])
    if effect.kind == "agent" and rng.random() < 0.5:
        return marker(value, agent(str(context.get("n", "a"))))
    return value


def ending(played: Played) -> Any:
    result = played.result
    return (
        result.status,
        repr(result.output),
        repr(result.error),
        sorted(result.effect_ids),
    )


def at_random(rng: random.Random) -> Any:
    return lambda waiting: rng.randrange(len(waiting))


@settings(max_examples=150, deadline=None)
@given(NODES, SEEDS, SEEDS)
def test_any_order_of_answers_asks_for_the_same_and_ends_the_same(root: Any, seed: int, order: int) -> None:
    manifest = workflow(root)
    first = run(manifest, "in", lambda effect: outcome(effect, seed), limits=LIMITS)
    other = run(
        manifest,
        "in",
        lambda effect: outcome(effect, seed),
        limits=LIMITS,
        choose=at_random(random.Random(order)),
    )
    assert other.hashes == first.hashes
    assert ending(other) == ending(first)


@settings(max_examples=100, deadline=None)
@given(NODES, SEEDS, SEEDS)
def test_any_part_of_what_was_recorded_replays(root: Any, seed: int, order: int) -> None:
    manifest, rng = workflow(root), random.Random(order)
    whole = run(manifest, "in", lambda effect: outcome(effect, seed), limits=LIMITS)
    known: dict[str, RecordedOutcome] = {}
    # A core that answers everything later, and records some of what is waited for before each run.
    for _ in range(len(whole.effects) + 2):
        played = run(manifest, "in", limits=LIMITS, outcomes=list(known.values()), choose=at_random(rng))
        assert not {effect.effect_id for effect in played.effects if effect.effect_id in known} & {
            effect.effect_id
            for effect, recorded in zip(played.effects, played.known, strict=True)
            if not recorded
        }
        if played.result.status not in ("waiting", "uncertain"):
            break
        waits = sorted(played.waits_for)
        asked = {effect.effect_id.removeprefix("T1:0:flow:"): effect for effect in played.effects}
        for name in rng.sample(waits, rng.randint(1, len(waits))):
            effect = asked[name]
            known[effect.effect_id] = RecordedOutcome(
                effect.effect_id, effect.request_hash, {"value": outcome(effect, seed)}
            )
    if _collides(whole):
        return  # two leaves of one name with different inputs: whoever is recorded first decides
    assert played.hashes <= whole.hashes
    if not whole.result.cancel_effect_ids and whole.result.status == "completed":
        assert played.hashes == whole.hashes
        assert ending(played) == ending(whole)
    assert (
        run(
            manifest,
            "in",
            limits=LIMITS,
            outcomes=[
                RecordedOutcome(effect.effect_id, effect.request_hash, {"value": outcome(effect, seed)})
                for effect in whole.effects
            ],
        ).new
        == []
    )


def _collides(played: Played) -> bool:
    return len({effect.effect_id for effect in played.effects}) < len(played.hashes)


@settings(max_examples=60, deadline=None)
@given(NODES, SEEDS, st.integers(0, 30))
def test_an_abort_at_any_point_ends_the_segment(root: Any, seed: int, after: int) -> None:
    whole = run(workflow(root), "in", lambda effect: outcome(effect, seed), limits=LIMITS)
    if not whole.asked:
        return
    target = whole.asked[after % len(whole.asked)]
    played = run(workflow(root), "in", lambda effect: outcome(effect, seed), limits=LIMITS, abort_at=target)
    assert played.result.status in ("failed", "cancelled")
    assert played.hashes <= whole.hashes


@settings(max_examples=60, deadline=None)
@given(NODES, SEEDS)
def test_the_fast_way_of_writing_changes_nothing(root: Any, seed: int) -> None:
    def whole(effect: EffectRequest) -> Any:
        value = outcome(effect, seed)
        return value if "." not in repr(value) else "no float"

    slow, fast = (run(workflow(root), "in", whole, limits=LIMITS, plain=plain) for plain in (False, True))
    assert slow.hashes == fast.hashes
    assert ending(slow) == ending(fast)


def test_version_one_asks_for_the_same_in_any_order() -> None:
    loop = {"loop": {"id": "l", "run": {"agent": "a"}, "verify": FN, "decide": FN}}
    each = {"chain": {"id": "c", "steps": [loop, {"slot": {"run": {"tool": {"name": "t"}}, "input": FN}}]}}
    manifest = flow1({"map": {"id": "m", "over": FN, "each": each}})

    def answer(effect: EffectRequest) -> Any:
        if effect.effect_id.endswith("m:fn:-"):
            return [1, 2, 3]
        context: Any = effect.document["context"]
        if context.get("role") == "decide":
            return {"input": "again"} if context["n"] == 1 else {"output": context["n"]}
        return effect.effect_id

    first = run(manifest, "in", answer)
    for seed in range(20):
        other = run(manifest, "in", answer, choose=at_random(random.Random(seed)))
        assert other.hashes == first.hashes
        assert ending(other) == ending(first)


@pytest.mark.spec("flow-engine:17.35")
def test_a_map_of_loops_ends_the_same_in_every_order_with_a_restart_after_each_outcome() -> None:
    each = {"loop": {"run": {"agent": "guide"}, "verify": FN, "max": 2}}
    manifest = flow({"chain": [{"map": {"each": each}, "id": "stops", "input": FN}]}, "guide")

    def answer(effect: EffectRequest) -> Any:
        name = effect.effect_id.removeprefix("T1:0:flow:")
        if name == "stops:input:fn:-":
            return ["tower", "market", "river"]
        if effect.kind == "verify":
            done = "[1]" not in name or name.endswith(":2")
            return {"pass": True} if done else {"pass": False, "feedback": "name it"}
        return marker(f"about {name}", agent("guide"))

    whole = run(manifest, "in", answer)
    assert len(whole.effects) == 9
    for seed in range(30):
        rng, known = random.Random(seed), dict[str, RecordedOutcome]()
        while True:
            played = run(manifest, "in", lambda _: Pending(), outcomes=list(known.values()))
            if played.result.status != "waiting":
                break
            chosen = rng.choice([one for one in played.effects if one.effect_id not in known])
            known[chosen.effect_id] = RecordedOutcome(
                chosen.effect_id, chosen.request_hash, {"value": answer(chosen)}
            )
        assert played.hashes == whole.hashes
        assert played.output == whole.output
