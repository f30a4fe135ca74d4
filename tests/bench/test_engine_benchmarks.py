"""Benchmarks that need no other process: they run, and cost grows with what is new."""

from __future__ import annotations

from tests.bench.support import run_bench


def test_long_session_shows_the_call_apart_from_the_hash_pass() -> None:
    result = run_bench("long_session", "--entries", "200", "--rounds", "1")
    shown = ("call_ms", "hash_ms", "message_ms", "whole_ms", "message_kib", "turn_ms")
    assert {f"{name}_{length}" for name in shown for length in (10, 200)} == set(result["figures"])
    whole, parts = result["figures"]["whole_ms_200"], ("call_ms_200", "hash_ms_200", "message_ms_200")
    # Each is a median of its own.
    assert 0.5 * whole < sum(result["figures"][name] for name in parts) < 2 * whole
    assert result["figures"]["message_kib_200"] > 10 * result["figures"]["message_kib_10"]
    assert result["ratio"]["hash_200_over_10"] > 2
    assert 0 < result["ratio"]["call_200_over_10"] < 10


def test_replay_takes_exactly_the_recorded_outcomes() -> None:
    for count in (1, 2, 3, 20):
        figures = run_bench("replay", "--outcomes", str(count), "--rounds", "2", "--bytes", "64")["figures"]
        assert figures["outcomes"] == (count if count != 2 else 3)
        assert figures["engine_ms"] > 0
        assert figures["gateway_ms"] > 0
