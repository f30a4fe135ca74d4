"""docs/dependencies.md names every dependency of pyproject.toml, and no other."""

from __future__ import annotations

import re
import tomllib

import pytest

from services.sandbox_manager.emulated.commands import known_commands
from tests.docs.pages import DOCS, ROOT, Page, code_of

PAGE = Page(DOCS / "dependencies.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

GROUPS = {
    "At run time": PROJECT["project"]["dependencies"],
    "With an extra": PROJECT["project"]["optional-dependencies"]["providers"],
    "For tests": PROJECT["dependency-groups"]["test"],
    "In the image": PROJECT["dependency-groups"]["image"],
    "For lint and types": PROJECT["dependency-groups"]["lint"],
    "For the build": PROJECT["build-system"]["requires"],
}


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("section", GROUPS)
def test_each_group_is_described_in_full(section: str) -> None:
    described = [code_of(row.cells[0])[0] for row in PAGE.rows() if row.section == section]
    assert len(described) == len(set(described))
    assert set(described) == {name_of(requirement) for requirement in GROUPS[section]}


def test_every_dependency_has_a_job_and_a_reason_where_it_runs() -> None:
    rows = [row for row in PAGE.rows() if row.section == "At run time"]
    assert all(len(row.cells[1]) > 5 and len(row.cells[2]) > 20 for row in rows)


def test_the_emulated_shell_has_as_many_commands_as_it_says() -> None:
    [row] = [row for row in PAGE.rows() if row.cells[0] == "`just-bash`"]
    assert f"{len(known_commands())} commands" in row.cells[2]
