"""docs/configuration.md names every setting that is read, with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateway.settings
import services.common.server
import services.dev_core.settings
import services.tool_gate.settings
from tests.docs.pages import DOCS, ROOT, Page, Row, code_of
from tests.docs.settings_read import NAME, PROCESSES, Read, handed_on, literal_names, read_by

PAGE = Page(DOCS / "configuration.md")
HEADER = ("Setting", "Default", "Allowed", "Meaning")

PASSED_ON_ALONE: set[str] = set()
"""Named in code, and read by no process so far."""

READ_BY_LIBRARIES = {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_TRACES_SAMPLER", "OTEL_RESOURCE_ATTRIBUTES"}
"""The OpenTelemetry SDK reads them itself."""


def rows_of(process: str) -> dict[str, Row]:
    """The page's rows for a process, by name: those of every section whose heading names it."""
    found: dict[str, Row] = {}
    for row in PAGE.rows():
        if row.header == HEADER and process in re.split(r", | and ", row.section):
            for name in code_of(row.cells[0]):
                assert name not in found, f"{name} is described twice for {process}"
                found[name] = row
    return found


def secrets_with_files() -> set[str]:
    names = {
        *gateway.settings.SECRETS,
        *services.common.server.SECRETS,
        *services.dev_core.settings.SECRETS,
        *services.tool_gate.settings.SECRETS,
    }
    return names | {f"{name}_FILE" for name in names}


def names_of_compose() -> set[str]:
    return set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text("utf-8")))


def test_every_setting_that_code_names_is_described() -> None:
    described = {name for row in PAGE.rows() if row.header == HEADER for name in code_of(row.cells[0])}
    # What is refused, and what belongs to nobody here, stands in the text.
    described |= set(NAME.findall("\n".join(line for _, line in PAGE.prose if not line.startswith("|"))))
    read = (literal_names() | secrets_with_files() | names_of_compose()) - PASSED_ON_ALONE
    assert read - described == set(), "read in code, missing in the page"


def test_every_setting_that_the_page_names_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set(NAME.findall("\n".join(PAGE.lines)))
    read = literal_names() | secrets_with_files() | names_of_compose() | READ_BY_LIBRARIES
    for process in PROCESSES:
        read |= set(read_by(process, monkeypatch))
    assert named - read == set(), "named in the page, not read"


@pytest.mark.parametrize("process", PROCESSES)
def test_each_process_has_its_settings_and_no_other(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(rows_of(process)) == set(read_by(process, monkeypatch))


@pytest.mark.parametrize("process", PROCESSES)
def test_defaults_and_bounds_are_those_of_the_code(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(process)
    wrong = []
    for name, read in read_by(process, monkeypatch).items():
        _, default, allowed, _ = rows[name].cells
        if read.default is not None and code_of(default) != [read.default]:
            wrong.append(f"{name}: the default is {read.default}, not {default}")
        if not _says(allowed, read):
            wrong.append(f"{name}: {read.allowed} is allowed, not {allowed}")
    assert not wrong, "\n".join(wrong)


def _says(allowed: str, read: Read) -> bool:
    if read.allowed is None:
        return True
    return allowed == read.allowed


def test_what_up_hands_on_is_listed(tmp_path: Path) -> None:
    names = {*literal_names(), *secrets_with_files()} - PASSED_ON_ALONE
    rows = {row.cells[0]: row.cells[1] for row in PAGE.rows() if row.header == ("Process", "Handed on")}
    for process, marked in handed_on(names, tmp_path).items():
        handed = {name for name in marked if not name.startswith("OTEL_")}
        if process == "dev-core":
            others = {name for name in handed if not name.startswith("WHIPPLETREE_CORE_")}
            assert set(code_of(rows[process])) == {"WHIPPLETREE_CORE_", *others}
        else:
            assert set(code_of(rows[process])) == handed, process
    assert set(rows) == {*handed_on(names, tmp_path), "all"}
