from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.checks import assert_passes, files_of


@pytest.mark.parametrize(("kind", "path"), files_of("frames"))
def test_every_recorded_case_agrees(kind: str, path: Path) -> None:
    cases = assert_passes(kind, path)
    assert all(case.verdict == "passed" for case in cases)
