from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.checks import assert_passes, files_of, run_all
from tests.vectors.segment_host import play


@pytest.mark.parametrize(
    ("kind", "path"), files_of("segments", "flows", "agents", "compaction", "states", "variants")
)
def test_every_recorded_case_that_is_built_agrees(kind: str, path: Path) -> None:
    assert_passes(kind, path)


@pytest.mark.parametrize(
    ("kind", "passed"),
    [("segments", 33), ("flows", 17), ("agents", 120), ("states", 70), ("compaction", 30), ("variants", 40)],
)
def test_no_case_slips_among_those_not_built(kind: str, passed: int) -> None:
    verdicts: Counter[str] = Counter()
    for parameters in files_of(kind):
        _, path = parameters.values  # type: ignore[attr-defined]
        verdicts.update(case.verdict for case in run_all(kind, path))
    assert verdicts["passed"] == passed


@pytest.mark.parametrize(("_kind", "path"), files_of("flows"))
def test_flows_ask_for_their_effects_in_the_recorded_order(_kind: str, path: Path) -> None:
    document = json.loads(path.read_text())
    for step in document["steps"]:
        manifest = step["input"].get("manifest", document["manifest"])
        played = play("flow", manifest, step["input"], step.get("answers", {}))
        asked = [effect.effect_id for effect, _ in played.asked]
        assert asked == [effect["effectId"] for effect in step["expect"].get("effects", [])], step.get(
            "title"
        )
