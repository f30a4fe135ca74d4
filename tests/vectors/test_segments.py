from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.checks import assert_passes, files_of, run_all


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
