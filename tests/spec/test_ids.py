"""Every edge case of the specifications has a test or a reason, and every marker names a listed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.ids import Claim, SpecCase, claims, load, problems


def test_every_edge_case_has_a_test_or_a_reason_and_every_marker_is_listed() -> None:
    found = problems(load(), claims())
    assert not found, "\n".join(found)


def test_every_specification_with_edge_cases_has_its_list() -> None:
    assert {case.spec for case in load()} == {
        "agent-engine",
        "flow-engine",
        "harness-api",
        "mcp-pool",
        "model-executor",
        "operations",
        "pod-mode",
        "sandbox-manager",
    }


def case(number: str, reason: str = "") -> SpecCase:
    return SpecCase("kettle", number, "It whistles.", reason)


@pytest.mark.parametrize(
    ("cases", "found", "problem"),
    [
        ([case("1.1")], [], "kettle:1.1 has neither a test nor a reason: It whistles."),
        ([case("1.1", "cold")], [Claim("kettle:1.1", "t.py:3")], "kettle:1.1 has a test and still a reason"),
        ([], [Claim("kettle:1.2", "t.py:3")], "t.py:3: kettle:1.2 is not listed"),
        ([case("1.1", "cold"), case("1.1", "cold")], [], "kettle:1.1 is listed twice"),
        ([], [Claim(None, "t.py:3")], "t.py:3: a spec marker takes literal ids"),
    ],
)
def test_what_does_not_fit_is_named(cases: list[SpecCase], found: list[Claim], problem: str) -> None:
    (only,) = problems(cases, found)
    assert only.startswith(problem)


def test_a_test_or_a_reason_is_enough() -> None:
    assert problems([case("1.1"), case("1.2b", "cold")], [Claim("kettle:1.1", "t.py:3")]) == []


def test_markers_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "test_pot.py").write_text(
        "import pytest\n"
        'pytestmark = pytest.mark.spec("pot:1.1")\n'
        '@pytest.mark.spec("pot:1.2", "pot:1.3b")\n'
        "def test_boils(): ...\n"
        'rows = [pytest.param(1, marks=pytest.mark.spec("pot:1.4"))]\n'
        "@pytest.mark.spec(rows[0])\n"
        "def test_cools(): ...\n"
    )
    found = claims(tmp_path)
    assert [claim.id for claim in found if claim.id] == ["pot:1.1", "pot:1.2", "pot:1.3b", "pot:1.4"]
    assert [claim.place for claim in found if claim.id is None] == ["test_pot.py:6"]


@pytest.mark.parametrize(
    "entry",
    [
        'id = "1.1"',
        'id = "one"\nsays = "x"',
        'id = "1.1"\nsays = " "',
        'id = "1.1"\nsays = "x"\nnot_built = ""',
        'id = "1.1"\nsays = "x"\nwhy = "y"',
    ],
)
def test_a_malformed_entry_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "kettle.toml").write_text(f"[[case]]\n{entry}\n")
    with pytest.raises(ValueError, match=r"kettle\.toml"):
        load(tmp_path)
