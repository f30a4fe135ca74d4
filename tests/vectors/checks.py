"""Vector files as pytest cases: parametrise with `files_of`, assert with `assert_passes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.case import Case
from tests.vectors.files import kind_of, vector_files
from tests.vectors.registry import load_runners, run_file

DATA = Path(__file__).parent / "data"


def files_of(*kinds: str) -> list[object]:
    """One parameter set (kind, path) for each recorded file of the kinds."""
    found = [(kind_of(path), path) for path in vector_files(DATA)]
    return [pytest.param(kind, path, id=str(path.relative_to(DATA))) for kind, path in found if kind in kinds]


def run_all(kind: str, path: Path) -> list[Case]:
    """The verdicts about one file."""
    return list(run_file(load_runners()[kind], kind, path))


def assert_passes(kind: str, path: Path) -> list[Case]:
    """Asserts that the file has cases and that none fails; gives them back."""
    cases = run_all(kind, path)
    assert cases, "the file has no cases"
    failed = [f"{case.name}: {case.detail[:500]}" for case in cases if case.verdict == "failed"]
    assert not failed, "\n".join(failed)
    return cases
