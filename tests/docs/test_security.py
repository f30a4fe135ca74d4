"""docs/security.md says of the emulated shell and the seccomp filter what they are."""

from __future__ import annotations

import re

from services.mcp_pool.launch import HarnessRoot, base_environment
from services.sandbox_manager.bwrap.flags import ENVIRONMENT
from services.sandbox_manager.emulated.commands import known_commands
from tests.docs.pages import DOCS, Page, code_of

PAGE = Page(DOCS / "security.md")
TEXT = " ".join(PAGE.lines)
ROWS = {row.cells[0]: row for row in PAGE.rows()}


def test_the_known_commands_are_listed() -> None:
    start = TEXT.index("The known commands:")
    listed = code_of(TEXT[start : TEXT.index("and the shell's own")])
    assert sorted(listed) == sorted(known_commands())
    assert f"its {len(listed)} commands" in TEXT


def test_what_the_shell_lacks_is_not_known() -> None:
    missing = code_of(ROWS["programs of a system"].cells[1]) + code_of(ROWS["commands it lacks"].cells[1])
    missing.remove("awk")
    assert set(missing) & set(known_commands()) == set()


def test_the_variables_of_children_are_those_of_the_code() -> None:
    sandbox = code_of(ROWS["sandbox command"].cells[1])
    assert sandbox == [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    process = dict.fromkeys(("PATH", "LANG", "TZ", "LC_ALL", "LOGNAME", "SHELL", "TERM", "USER"), "value")
    given = base_environment({**process, "AWS_SECRET": "x", "NYLORUN_GRPC_TOKEN": "x"}, HarnessRoot("/h"))
    assert set(given) == {*process, "HOME", "TMPDIR"}
    named = set(code_of(ROWS["MCP server"].cells[1]))
    assert {name.replace("LC_ALL", "LC_*") for name in given} <= named
    assert re.search(r"end of stdin, 2 s, SIGTERM, 2 s, SIGKILL", TEXT)
