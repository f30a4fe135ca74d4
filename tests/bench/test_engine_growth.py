"""The engine alone: how much it gets through, and that a step's cost does not follow the conversation's."""

from __future__ import annotations

from tests.bench.support import run_bench


def test_a_segment_of_parallel_tools_is_counted_in_effects() -> None:
    result = run_bench("engine_segment", "--steps", "10", "--entries", "50", "--rounds", "3")
    assert result["figures"]["effects_per_s"] > 500
    assert result["figures"]["hash_ms"] < result["figures"]["segment_ms"]


def test_a_step_costs_about_the_same_however_long_the_transcript_is() -> None:
    result = run_bench("engine_growth", "--rounds", "5")
    assert {"step_100_over_10", "step_1000_over_10", "step_5000_over_10"} == set(result["ratio"])
    assert result["ratio"]["step_5000_over_10"] < 8
    assert result["figures"]["hash_ms_5000"] > result["figures"]["hash_ms_10"] * 20
