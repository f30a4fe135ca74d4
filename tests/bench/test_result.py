"""How results are shown and how samples are read."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import NAMES, main
from bench.result import BenchResult, percentile
from bench.turns import take_turns


def test_json_is_one_object_of_name_figures_baseline_and_ratio() -> None:
    result = BenchResult("some", {"a_ms": 1.23456}, {"floor_ms": 1.0}, {"a_over_floor": 1.23456})
    assert json.loads(result.to_json()) == {
        "name": "some",
        "figures": {"a_ms": 1.2346},
        "baseline": {"floor_ms": 1.0},
        "ratio": {"a_over_floor": 1.2346},
    }


def test_the_table_has_a_row_per_number() -> None:
    table = BenchResult("some", {"a_ms": 1.5}, {"floor_ms": 1.0}, {"a_over_floor": 1.5}).to_table()
    assert [line.split()[-1] for line in table.splitlines()] == ["some", "1.500", "1.000", "1.500"]


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 51.0), (0.99, 100.0), (1.0, 100.0)], ids=str)
def test_a_percentile_is_one_of_the_samples(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(name in shown.err for name in NAMES)


async def test_variants_take_turns_and_each_begins_a_round_as_often() -> None:
    called: list[str] = []

    async def one() -> None:
        called.append("one")

    async def two() -> None:
        called.append("two")

    samples = await take_turns({"one": one, "two": two}, rounds=4, warm_up=2)
    assert {name: len(found) for name, found in samples.items()} == {"one": 4, "two": 4}
    rounds = [called[at : at + 2] for at in range(0, len(called), 2)]
    assert [pair[0] for pair in rounds] == ["one", "two"] * 3
    assert all(sorted(pair) == ["one", "two"] for pair in rounds)
