"""The ids of the specifications' edge cases, and the tests that claim to prove them.

`tests/spec/<specification>.toml` lists every edge case of one specification; a test names what it proves
with `@pytest.mark.spec("<specification>:<id>", ...)`. Both are read as text: nothing is imported.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent

ID = re.compile(r"\d+(\.\d+)*[a-z]?\Z")


@dataclass(frozen=True, slots=True)
class SpecCase:
    """One edge case. `not_built` says why there is no test yet; it is empty when there is one."""

    spec: str
    number: str
    says: str
    not_built: str

    @property
    def id(self) -> str:
        """The id as markers name it."""
        return f"{self.spec}:{self.number}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A marker in a test file. `id` is None when it is not written out as a literal."""

    id: str | None
    place: str


def load(folder: Path = FOLDER) -> list[SpecCase]:
    """Every listed case. Raises ValueError for an entry of another shape."""
    cases = []
    for path in sorted(folder.glob("*.toml")):
        document = tomllib.loads(path.read_text("utf-8"))
        if set(document) - {"case"}:
            raise ValueError(f"{path.name}: only [[case]] tables belong here")
        cases += [_case(path, entry) for entry in document.get("case", [])]
    return cases


def _case(path: Path, entry: dict[str, str]) -> SpecCase:
    unknown = set(entry) - {"id", "says", "not_built"}
    number, says, reason = (entry.get(key, "") for key in ("id", "says", "not_built"))
    if unknown or not ID.match(number) or not says.strip() or ("not_built" in entry and not reason.strip()):
        raise ValueError(f"{path.name}: case {number or entry}: needs id, says and maybe not_built")
    return SpecCase(path.stem, number, says, reason)


def claims(folder: Path = TESTS) -> list[Claim]:
    """Every `spec` marker below the folder."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text("utf-8")
        if "mark.spec" in source:
            found += _claims_in(ast.parse(source), path.relative_to(folder))
    return found


def _claims_in(tree: ast.AST, path: Path) -> Iterator[Claim]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _is_spec_marker(node.func):
            continue
        place = f"{path}:{node.lineno}"
        for argument in node.args:
            literal = argument.value if isinstance(argument, ast.Constant) else None
            yield Claim(literal if isinstance(literal, str) else None, place)
        if not node.args or node.keywords:
            yield Claim(None, place)


def _is_spec_marker(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "spec"
        and isinstance(function.value, ast.Attribute)
        and function.value.attr == "mark"
    )


def problems(cases: list[SpecCase], found: list[Claim]) -> list[str]:
    """What does not fit between the lists and the markers, one sentence each."""
    listed: dict[str, SpecCase] = {}
    out = []
    for case in cases:
        if case.id in listed:
            out.append(f"{case.id} is listed twice")
        listed[case.id] = case
    proven: set[str] = set()
    for claim in found:
        if claim.id is None:
            out.append(f"{claim.place}: a spec marker takes literal ids, at least one")
        elif claim.id not in listed:
            out.append(f"{claim.place}: {claim.id} is not listed")
        else:
            proven.add(claim.id)
    for case in listed.values():
        if case.id in proven and case.not_built:
            out.append(f"{case.id} has a test and still a reason why not")
        if case.id not in proven and not case.not_built:
            out.append(f"{case.id} has neither a test nor a reason: {case.says}")
    return out
