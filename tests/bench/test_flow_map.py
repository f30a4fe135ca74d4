"""A flow's map alone: many effects a second, a quick replay, and memory that grows with the items only."""

from __future__ import annotations

from tests.bench.support import run_bench


def test_a_map_asks_fast_replays_fast_and_holds_little() -> None:
    result = run_bench("flow_map", "--items", "300", "--rounds", "3")
    figures = result["figures"]
    assert figures["effects_per_s"] > 2000
    assert figures["replay_ms"] < 500
    assert figures["check_100000_nodes_ms"] < 10_000
    assert result["ratio"]["kib_per_item_x4_over_x1"] < 1.2
