from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.checks import assert_passes, files_of


@pytest.mark.parametrize(("kind", "path"), files_of("json_schema", "json_schema_details"))
def test_every_recorded_schema_judges_every_value_alike(kind: str, path: Path) -> None:
    cases = assert_passes(kind, path)
    assert all(case.verdict == "passed" for case in cases)
