"""docs/security.md says of the emulated shell and the seccomp filter what they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from services.mcp_pool.launch import HarnessRoot, base_environment
from services.sandbox_manager.bwrap.flags import ENVIRONMENT
from services.sandbox_manager.emulated.commands import known_commands
from services.sandbox_manager.emulated.filesystem import EntryFileSystem
from services.sandbox_manager.emulated.shell import run_command
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


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("awk 'BEGIN {system(\"ls\")}'; echo $?", "2\n"),
        ("printf 'b\\na\\n' | awk '{print | \"sort\"}'", "a\nb\n"),
        ("seq 3 | xargs -L1 echo; echo $?", "1\n"),
        ("seq 2 | xargs -I{} echo n{}", "n1\nn2\n"),
        ("echo -en '\\xff' | wc -c", "2\n"),
        ("printf '\\xff' > f; stat -c %s f", "1\n"),
        ("trap 'echo bye' EXIT; echo hi", "hi\n"),
        ("cat <(echo hi)", "hi\n"),
        ("while read l; do echo $l; done < <(echo hi)", ""),
        ("head -c 3 /dev/zero | wc -c", "0\n"),
        ("env -i A=1 env | grep -c A=1", "0\n"),
        ("yes | head -1", ""),
    ],
)
async def test_what_the_page_says_of_the_shell_is_so(tmp_path: Path, command: str, printed: str) -> None:
    """When one of these is put right, the row of the page can go."""
    printed_now: list[str] = []
    folder = tmp_path / "entry"
    for name in ("workspace", "tmp"):
        (folder / name).mkdir(parents=True)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        files = EntryFileSystem(descriptor)
        await run_command(command, files, known_commands(), lambda out, _: printed_now.append(out))
    finally:
        os.close(descriptor)
    assert "".join(printed_now) == printed
