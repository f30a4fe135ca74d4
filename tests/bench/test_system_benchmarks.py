"""Benchmarks that start the real processes, with small parameters: they run and say what they promise."""

from __future__ import annotations

import pytest

from tests.bench.support import run_bench

pytestmark = pytest.mark.system


def test_effect_overhead_has_a_way_in_process_and_a_bare_one_for_each_kind() -> None:
    result = run_bench("effect_overhead", "--calls", "10", "--sizes", "1KiB,64KiB")
    assert {"added_ms_p50_1KiB", "added_ms_p99_64KiB", "hop_over_echo_1KiB"} <= set(result["figures"])
    assert {"mcp_added_ms_p50_1KiB", "sandbox_added_ms_p50_1KiB"} <= set(result["figures"])
    assert {"echo_ms_p50_1KiB", "mcp_stream_ms_p50_1KiB", "sandbox_stream_ms_p50_1KiB"} <= set(
        result["baseline"]
    )
    assert {"hop_over_echo_1KiB", "mcp_over_stream_1KiB", "journal_over_floor"} <= set(result["ratio"])
    assert result["ratio"]["hop_over_echo_1KiB"] == pytest.approx(
        result["figures"]["call_ms_p50_1KiB"] / result["baseline"]["echo_ms_p50_1KiB"], rel=0.01
    )


def test_effect_overhead_measures_a_megabyte_each_way() -> None:
    result = run_bench("effect_overhead", "--calls", "20", "--sizes", "1MiB", "--kinds", "model,mcp,sandbox")
    assert result["baseline"]["echo_ms_p50_1MiB"] > 0


@pytest.mark.parametrize("via", ["sandbox", "mcp"])
def test_run_throughput_counts_runs_and_effects(via: str) -> None:
    flags = ("--sessions", "2", "--turns", "2", "--tools", "2", "--via", via)
    figures = run_bench("run_throughput", *flags)["figures"]
    assert figures["effects_per_s_2x2x2"] == pytest.approx(4 * figures["runs_per_s_2x2x2"], rel=0.01)
    assert figures["cpu_s_2x2x2"] > 0
    assert figures["peak_mib_2x2x2"] > 50


def test_held_runs_compares_a_gateway_that_holds_with_an_idle_one() -> None:
    result = run_bench("held_runs", "--sessions", "20")
    assert result["figures"]["sessions"] == 20
    assert result["figures"]["held_mib"] > 0
    assert result["baseline"]["idle_mib"] > 0


def test_startup_times_each_process_and_all_of_them() -> None:
    figures = run_bench("startup", "--times", "1")["figures"]
    for name in ("dev-core", "model-executor", "mcp-pool", "sandbox-manager", "gateway"):
        assert figures[f"{name}_s"] < 5 * 1.5
        assert figures[f"{name}_mib"] < 80
    assert figures["up_s"] < 5 * 6
    assert figures["help_s"] < 5 * 0.3


@pytest.mark.faults
def test_many_mcp_servers_cost_little_and_leave_nothing_however_the_pool_ends() -> None:
    figures = run_bench("mcp_many", "--servers", "60")["figures"]
    assert figures["most_opening"] <= 8
    assert figures["kib_each"] <= 128
    assert figures["descriptors_each"] <= 4
    assert figures["left"] == 0
    assert figures["seconds_after_term"] < 5 * 8
    assert figures["seconds_after_kill"] < 5 * 3


def test_mcp_overhead_stands_beside_the_official_client() -> None:
    result = run_bench("mcp_overhead", "--calls", "20", "--proxy", "/not/installed")
    assert set(result["baseline"]) == {"sdk_cpu_ms", "sdk_ms_p50", "sdk_ms_p99"}
    assert result["ratio"]["ours_over_sdk_p50"] == pytest.approx(
        result["figures"]["ours_ms_p50"] / result["baseline"]["sdk_ms_p50"], rel=0.01
    )


def test_mcp_flood_has_calls_of_another_session_during_both_floods() -> None:
    result = run_bench("mcp_flood", "--floods", "1", "--calls", "20")
    assert result["figures"]["calls"] > 0
    assert result["figures"]["tools_calls"] > 0
    assert result["baseline"]["quiet_ms_p99"] > 0


def test_model_overhead_compares_both_routes_with_the_bare_client() -> None:
    result = run_bench("model_overhead", "--calls", "10", "--sizes", "64KiB")
    for route in ("gate", "direct"):
        added = result["figures"][f"{route}_added_ms_p50_64KiB"]
        whole, bare = (
            result["figures"][f"{route}_call_ms_p50_64KiB"],
            result["baseline"][f"{route}_bare_ms_p50_64KiB"],
        )
        assert added == pytest.approx(whole - bare, abs=0.01)
        assert added < 5 * 3


def test_model_throughput_counts_calls_of_both_routes_and_says_when_portkey_is_left_out() -> None:
    result = run_bench("model_throughput", "--calls", "64", "--rounds", "1", "--portkey", "none")
    assert {"gate_calls_per_s", "direct_calls_per_s", "gate_cpu_ms_per_call"} <= set(result["figures"])
    assert set(result["ratio"]) == {"direct_over_sdk", "direct_cpu_over_sdk"}
    assert result["ratio"]["direct_over_sdk"] > 0.8 / 5


def test_held_model_calls_cost_little_end_never_by_themselves_and_all_at_once() -> None:
    figures = run_bench("model_held", "--calls", "100", "--seconds", "1")["figures"]
    for route in ("gate", "direct"):
        assert figures[f"{route}_failed"] == 0
        assert figures[f"{route}_cancel_s"] < 5 * 3
    # 1,000 calls stay under 300 MiB, which leaves each of them about 230 KiB.
    assert figures["gate_kib_per_call"] < 2 * 230
