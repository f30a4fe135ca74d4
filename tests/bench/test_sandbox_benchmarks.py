"""Benchmarks of workspaces with small parameters: they run and say what they promise."""

from __future__ import annotations

import shutil

import pytest

from tests.bench.support import run_bench

pytestmark = pytest.mark.system


def test_sandbox_exec_takes_what_the_sandbox_itself_costs_away() -> None:
    result = run_bench("sandbox_exec", "--calls", "6")
    for driver in ("bwrap", "emulated"):
        added = result["figures"][f"call_ms_p50_{driver}"] - result["baseline"][f"hand_ms_p50_{driver}"]
        assert result["figures"][f"added_ms_p50_{driver}"] == pytest.approx(added, abs=0.01)


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep (Debian package) is missing")
def test_grep_stands_beside_the_programs_by_hand() -> None:
    result = run_bench("grep", "--files", "1200", "--mb", "2", "--rounds", "2")
    for name in ("rare", "none", "frequent"):
        assert result["figures"][f"emulated_ms_{name}"] > 0
        for ratio, tool, hand in (
            ("rg", "bwrap_rg", "rg"),
            ("grep", "bwrap", "grep"),
            ("cut", "bwrap", "cut"),
        ):
            took = result["figures"][f"{tool}_ms_{name}"] / result["baseline"][f"{hand}_ms_{name}"]
            assert result["ratio"][f"bwrap_over_{ratio}_{name}"] == pytest.approx(took, rel=0.01)


def test_glob_stands_beside_find() -> None:
    result = run_bench("glob", "--files", "1200", "--rounds", "2")
    assert set(result["ratio"]) == {
        f"{driver}_over_{hand}" for driver in ("bwrap", "emulated") for hand in ("find", "cut")
    }


def test_a_page_of_a_large_file_takes_no_more_memory_than_one_of_a_small_file() -> None:
    result = run_bench("read", "--mb", "200", "--rounds", "2")
    assert result["figures"]["grown_mib"] < 50
    assert result["ratio"]["page_over_pass"] > 0


def test_many_workspaces_at_once_all_finish_in_little_memory() -> None:
    figures = run_bench("sandbox_many", "--workspaces", "40")["figures"]
    for driver in ("bwrap", "emulated"):
        assert figures[f"finished_{driver}"] == 40
        assert figures[f"manager_mib_{driver}"] < 200
    assert figures["children_mib_emulated"] < 400
