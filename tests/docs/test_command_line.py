"""docs/command-line.md lists the commands that there are."""

from __future__ import annotations

from cli.commands import app, mcp
from tests.docs.pages import DOCS, Page, code_of

PAGE = Page(DOCS / "command-line.md")


def test_every_command_is_listed_and_exists() -> None:
    shown = [code_of(row.cells[0])[0] for row in PAGE.rows() if row.header == ("command", "what it does")]
    nested = {f"mcp {name}" for name in mcp if not name.startswith("-")}
    known = {name for name in app if not name.startswith("-")} - {"mcp"} | nested
    assert sorted(shown) == sorted(known)
