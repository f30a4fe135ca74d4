"""A flow that maps over many items, two agents one after another for each, every outcome there at once.

Timed is the engine's processor time on one core: a run that asks for every effect and is answered, the same
run from its recorded outcomes, and the check of a workflow of 100,000 nodes. Memory is what the run holds
while all items wait, once with `--items` and once with four times as many.

Figures: `effects_per_s`, `run_ms`, `replay_ms`, `float_effects_per_s` (outcomes with fractions, which are
written the slow way), `check_100000_nodes_ms`, `kib_per_item` and `kib_per_item_x4`.
Baseline: `hashes_per_s`, hashing the same documents and nothing else. Ratio: `effect_over_hash`, and
`kib_per_item_x4_over_x1`, which is 1 when memory grows with the items.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

from bench.result import BenchResult
from bench.turns import p50
from gateway.engine.contract import Completed, EffectRequest, RecordedOutcome, SegmentInput
from gateway.engine.definitions import DefinitionCache
from gateway.engine.factory import make_engine
from protocol.canonical import canonical_request, manifest_hash
from protocol.workflow import validate_workflow

_AGENTS: Final = ("draft", "review")
_LIMITS: Final = {"maxMapItems": 1_000_000}
_NODES: Final = 100_000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--items", type=int, default=1000, help="items of the map (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each kind (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    items, definitions = flags.items, DefinitionCache()
    effects = _run(items, definitions, _text)
    outcomes = [
        RecordedOutcome(one.effect_id, one.request_hash, {"value": _text(one)}, plain=True) for one in effects
    ]
    runs, replays, hashes, floats = [], [], [], []
    for _ in range(flags.rounds):
        runs.append(_timed(lambda: _run(items, definitions, _text)))
        replays.append(_timed(lambda: _replay(items, definitions, outcomes)))
        hashes.append(_timed(lambda: _hash_all(effects)))
        floats.append(_timed(lambda: _run(items, definitions, _fraction, plain=False)))
    checks = [_timed(_check_nodes) for _ in range(3)]
    held, held_x4 = _held_kib(items), _held_kib(4 * items)
    count = len(effects)
    figures = {
        "effects_per_s": count / p50(runs),
        "run_ms": p50(runs) * 1000,
        "replay_ms": p50(replays) * 1000,
        "float_effects_per_s": count / p50(floats),
        f"check_{_NODES}_nodes_ms": p50(checks) * 1000,
        "kib_per_item": held / items,
        "kib_per_item_x4": held_x4 / (4 * items),
    }
    ratio = {
        "effect_over_hash": p50(runs) / p50(hashes),
        "kib_per_item_x4_over_x1": figures["kib_per_item_x4"] / figures["kib_per_item"],
    }
    return BenchResult("flow_map", figures, {"hashes_per_s": count / p50(hashes)}, ratio)


def _workflow() -> dict[str, Any]:
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": "bench",
        "root": {"map": {"each": {"chain": [{"agent": name} for name in _AGENTS]}}},
        "agents": {name: _agent(name) for name in _AGENTS},
    }


def _agent(name: str) -> dict[str, Any]:
    return {"manifestSchemaVersion": 4, "id": name, "capabilities": []}


def _segment(items: int, outcomes: list[RecordedOutcome], *, plain: bool) -> SegmentInput:
    checkpoint: dict[str, Any] = {
        "version": 1,
        "engineVersion": "flow-2",
        "manifestHash": _HASH,
        "sessionId": "ses_bench",
        "turnId": "t_bench",
        "segment": 0,
        "input": [f"What is to be known of part {index}?" for index in range(items)],
    }
    return SegmentInput(
        manifest=_WORKFLOW,
        checkpoint=checkpoint,
        outcomes={one.effect_id: one for one in outcomes},
        flow_limits=_LIMITS,
        plain=plain,
    )


def _text(effect: EffectRequest) -> Any:
    """A turn's outcome as core records it: the agent's answer, and the manifest it ran with."""
    return {"__nylorunAgentTurn": 1, "output": "A sentence or two about it.", "agent": _AGENT}


def _fraction(effect: EffectRequest) -> Any:
    return {"__nylorunAgentTurn": 1, "output": {"score": 0.5}, "agent": _AGENT}


_WORKFLOW: Final = _workflow()
_AGENT: Final = _agent("draft")
_HASH: Final = manifest_hash(_WORKFLOW)


def _run(
    items: int,
    definitions: DefinitionCache,
    answer: Callable[[EffectRequest], Any],
    *,
    plain: bool = True,
) -> list[EffectRequest]:
    engine = make_engine("flow", _segment(items, [], plain=plain), definitions)
    step = engine.start(0.0)
    asked = list(step.effects)
    for effect in asked:  # grows while the engine asks
        step = engine.resolve(effect.effect_id, Completed({"value": answer(effect)}, plain), 0.0)
        asked += step.effects
    assert step.result is not None
    assert step.result.status == "completed"
    return asked


def _replay(items: int, definitions: DefinitionCache, outcomes: list[RecordedOutcome]) -> None:
    step = make_engine("flow", _segment(items, outcomes, plain=True), definitions).start(0.0)
    assert step.result is not None
    assert step.result.status == "completed"


def _hash_all(effects: list[EffectRequest]) -> None:
    for effect in effects:
        hashlib.sha256(canonical_request(effect.document, plain=True)).hexdigest()


def _check_nodes() -> None:
    steps = [{"agent": "draft", "id": f"s{index}"} for index in range(_NODES)]
    validate_workflow({**_WORKFLOW, "root": {"chain": steps}})


def _held_kib(items: int) -> float:
    segment = _segment(items, [], plain=True)
    gc.collect()
    tracemalloc.start()
    engine = make_engine("flow", segment)
    step = engine.start(0.0)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(step.effects) == items
    return held / 1024


def _timed(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.thread_time()
    work()
    return time.thread_time() - began
