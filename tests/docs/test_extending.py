"""docs/extending.md names files and members that are there."""

from __future__ import annotations

import re

from services.model_executor import routes
from services.sandbox_manager import contract
from tests.docs.pages import DOCS, ROOT, Page, code_of

PAGE = Page(DOCS / "extending.md")
TEXT = "\n".join(line for _, line in PAGE.prose)


def test_every_file_and_folder_that_it_names_exists() -> None:
    named = re.findall(r"`((?:services|tests)/[\w/.]+)`", TEXT)
    assert len(named) >= 7
    for path in named:
        assert (ROOT / path).exists(), path


def test_modules_beside_the_providers_exist() -> None:
    folder = ROOT / "services" / "model_executor" / "direct"
    for name in ("prompt.py", "openai_request.py", "vendors.py", "config.py", "failures.py"):
        assert f"`{name}`" in TEXT
        assert (folder / name).exists()


def test_the_members_of_a_route_are_all_named() -> None:
    rows = [row for row in PAGE.rows() if row.header == ("member", "promise")]
    shown = {code_of(row.cells[0])[0].partition("(")[0] for row in rows}
    assert shown == {name for name in vars(routes.Route) if not name.startswith("_")}


def test_the_traits_of_a_driver_are_all_named() -> None:
    for name in contract.Traits.__dataclass_fields__:
        assert f"`{name}`" in TEXT
