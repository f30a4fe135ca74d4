"""What every driver of the backend must do alike (sandbox-manager 15, and the tools of section 9).

`emulated` has no processes and no programs of a system; tests that need those are in test_bwrap.py.
"""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from services.sandbox_manager.contract import Backend, BackendError, Handle
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.conftest import fresh_key
from tests.sandbox_manager.support import BOUND, CLOSED, SECOND, output, spec, tool

pytestmark = pytest.mark.asyncio(loop_scope="module")

VARIABLES = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8", "TERM": "dumb"}


async def _shell(handle: Handle, command: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = await output(handle, "bash", command=command, **more)
    return result


async def _put(handle: Handle, path: str, content: str = "") -> None:
    await output(handle, "write", path=path, content=content)


# bash


async def test_commands_start_in_the_workspace_and_keep_nothing_but_files(handle: Handle) -> None:
    first = await _shell(handle, "pwd; X=1; cd /tmp; echo kept > /workspace/f; echo also > f")
    assert first == {"exitCode": 0, "stdout": "/workspace\n", "stderr": ""}
    second = await _shell(handle, 'pwd; echo "[$X]"; cat f /workspace/f /tmp/f')
    assert second["stdout"] == "/workspace\n[]\nkept\nkept\nalso\n"


@pytest.mark.spec("sandbox-manager:19.13")
@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("exit 300", 44), ("no-such-command", 127), ("true", 0), ("false", 1)],
)
async def test_exit_codes_come_through(handle: Handle, command: str, code: int) -> None:
    outcome = await tool(handle, "bash", command=command)
    assert outcome["kind"] == "completed"
    assert outcome["output"]["exitCode"] == code


@pytest.mark.spec("sandbox-manager:19.13")
async def test_a_failing_command_completes_with_its_streams(handle: Handle) -> None:
    assert await _shell(handle, "echo out; echo err >&2; exit 3") == {
        "exitCode": 3, "stdout": "out\n", "stderr": "err\n",
    }  # fmt: skip


async def test_an_unknown_command_is_said_plainly(handle: Handle) -> None:
    said = (await _shell(handle, "no-such-command"))["stderr"]
    assert "no-such-command: " in said
    assert "not found" in said


@pytest.mark.spec("sandbox-manager:19.14")
async def test_only_long_streams_lose_their_middle(handle: Handle) -> None:
    whole = await _shell(handle, "printf '%030000d' 0")
    assert whole == {"exitCode": 0, "stdout": "0" * 30_000, "stderr": ""}
    cut = await _shell(handle, "printf '%030001d' 0")
    assert cut["stdout"] == "0" * 15_000 + "\n… [1 characters omitted] …\n" + "0" * 15_000
    assert cut["truncated"] is True


@pytest.mark.spec("sandbox-manager:19.15")
async def test_long_emoji_are_cut_without_halves(handle: Handle) -> None:
    await _put(handle, "f", "😀" * 20_000)
    cut = await _shell(handle, "cat f")
    assert cut["truncated"] is True
    cut["stdout"].encode()


@pytest.mark.spec("sandbox-manager:19.16")
async def test_a_time_limit_kills_and_keeps_what_was_written(handle: Handle) -> None:
    result = await _shell(handle, "echo early; echo bad >&2; sleep 30; echo late", timeout=0.3)
    assert result == {
        "exitCode": 124,
        "stdout": "early\n",
        "stderr": "bad\nCommand timed out after 0.3s and was killed.",
        "timedOut": True,
    }
    assert (await _shell(handle, "echo again"))["stdout"] == "again\n"


async def test_a_busy_loop_is_killed_too(handle: Handle) -> None:
    result = await _shell(handle, "while true; do x=1; done", timeout=1)
    assert (result["exitCode"], result["stderr"]) == (124, "Command timed out after 1s and was killed.")


@pytest.mark.spec("sandbox-manager:19.17")
async def test_a_cancel_kills_and_keeps_what_was_written(handle: Handle) -> None:
    signal = Signal()
    running = asyncio.create_task(handle.exec("echo early; touch began; sleep 30", SECOND, signal))
    async with asyncio.timeout(BOUND):
        while await output(handle, "glob", pattern="began") != "/workspace/began":
            assert not running.done()
        signal.set("cancel")
        result = await running
    assert (result.exit_code, result.stdout, result.killed, result.timed_out) == (130, "early\n", True, False)


@pytest.mark.spec("sandbox-manager:19.18")
@pytest.mark.needs("processes")
async def test_what_a_command_leaves_behind_is_ended_or_waited_for(driver: Backend, handle: Handle) -> None:
    result = await _shell(handle, "sleep 30 & echo hi", timeout=2)
    if driver.traits.background == "kill":
        assert result == {"exitCode": 0, "stdout": "hi\n", "stderr": ""}
    else:
        assert (result["exitCode"], result["stdout"], result["timedOut"]) == (124, "hi\n", True)
    apart = await _shell(handle, "sleep 30 >/dev/null 2>&1 & echo hi", timeout=20)
    assert apart == {"exitCode": 0, "stdout": "hi\n", "stderr": ""}


async def test_an_abort_before_the_command_runs_nothing(handle: Handle) -> None:
    signal = Signal()
    signal.set("cancel")
    with contextlib.suppress(BackendError):
        result = await handle.exec("touch ran", SECOND, signal)
        assert (result.exit_code, result.killed) == (130, True)
    assert await output(handle, "glob", pattern="ran") == "No files matched."


async def test_there_is_no_input(handle: Handle) -> None:
    assert await _shell(handle, "cat", timeout=20) == {"exitCode": 0, "stdout": "", "stderr": ""}


@pytest.mark.needs("network_rules")
async def test_without_allowed_hosts_there_is_no_network(handle: Handle) -> None:
    for address in ("169.254.169.254", "10.0.0.1", "127.0.0.1", "github.com"):
        result = await _shell(handle, f"curl -sS -m 3 http://{address}/")
        assert result["exitCode"] != 0


@pytest.mark.spec("sandbox-manager:19.26")
@pytest.mark.needs("network_rules")
async def test_commands_see_exactly_four_variables_and_nothing_of_the_service(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NYLORUN_HARNESS_TOKEN", "very-secret")
    lines = (await _shell(handle, "env"))["stdout"].splitlines()
    seen = dict(line.split("=", 1) for line in lines)
    assert {name: value for name, value in seen.items() if name not in {"PWD", "SHLVL", "_"}} == VARIABLES
    result = await _shell(
        handle, "cat /proc/1/environ /proc/self/environ /proc/$PPID/environ; printenv; export"
    )
    assert "very-secret" not in result["stdout"] + result["stderr"]
    assert "NYLORUN" not in result["stdout"]


async def test_files_survive_a_stop(driver: Backend) -> None:
    key = fresh_key()
    first = await driver.open(spec(key, network=CLOSED))
    await _shell(first, "echo a > f")
    await first.stop()
    first.release()
    second = await driver.open(spec(key, network=CLOSED))
    assert await output(second, "read", path="f") == "1\ta"
    second.release()


@pytest.mark.needs("list_remove")
async def test_tmp_is_empty_after_a_stop(driver: Backend) -> None:
    key = fresh_key()
    first = await driver.open(spec(key, network=CLOSED))
    await _shell(first, "echo b > /tmp/g; mkdir /tmp/d")
    await first.stop()
    first.release()
    second = await driver.open(spec(key, network=CLOSED))
    assert (await tool(second, "read", path="/tmp/g"))["code"] == "sandbox.not_found"
    second.release()


@pytest.mark.needs("list_remove")
async def test_workspaces_are_listed_and_removed(driver: Backend) -> None:
    key, other = fresh_key(), fresh_key()
    for name in (key, other):
        opened = await driver.open(spec(name, network=CLOSED))
        await _shell(opened, "mkdir -p a/b; echo x > a/b/c")
        opened.release()
    assert await driver.list(key) == [key]
    await driver.remove(key)
    await driver.remove(key)
    assert await driver.list(key) == []
    assert await driver.list(other) == [other]


@pytest.mark.needs("list_remove")
async def test_a_removed_workspace_begins_anew(driver: Backend) -> None:
    key = fresh_key()
    opened = await driver.open(spec(key, network=CLOSED))
    await _put(opened, "f", "x")
    opened.release()
    await driver.remove(key)
    opened = await driver.open(spec(key, network=CLOSED))
    assert (await tool(opened, "read", path="f"))["code"] == "sandbox.not_found"
    opened.release()


async def test_the_probe_names_the_driver(driver: Backend) -> None:
    probe = await driver.probe()
    assert (probe.name, probe.available, probe.isolation) == (driver.name, True, driver.isolation)
    assert probe.version or driver.name == "local"
    assert probe.reason


async def test_nul_bytes_in_a_command_are_refused(handle: Handle) -> None:
    with pytest.raises(Exception, match="NUL"):
        await tool(handle, "bash", command="echo a\0b")


async def test_long_commands_run(handle: Handle) -> None:
    result = await _shell(handle, f"X={'a' * 200_000}; echo ${{#X}}")
    assert result["stdout"] == "200000\n"


async def test_commands_may_hold_any_text(handle: Handle) -> None:
    assert (await _shell(handle, "echo 'é😀 \"$HOME\" &lt;'"))["stdout"] == 'é😀 "$HOME" &lt;\n'
    assert (await _shell(handle, "printf '%s' '\ud800'"))["exitCode"] == 0


async def test_redirections_of_every_kind_of_command_are_followed(handle: Handle) -> None:
    command = """
        for i in 1 2; do echo $i; done > loop
        if true; then echo yes; fi > condition
        f() { echo in f; echo bad >&2; }
        f > call 2> errors
        { echo a; echo b; } > group
        (echo c) > subshell
        while read -r line; do echo "<$line>"; done < loop >> loops
        cat loop condition call errors group subshell loops
    """
    result = await _shell(handle, command)
    assert result["stdout"].split() == ["1", "2", "yes", "in", "f", "bad", "a", "b", "c", "<1>", "<2>"]
    assert result["stderr"] == ""


# read


@pytest.mark.spec("sandbox-manager:19.19")
async def test_a_page_has_padded_numbers_and_says_where_to_go_on(handle: Handle) -> None:
    await _put(handle, "f", "a\nb\nc\nd\ne\n")
    assert await output(handle, "read", path="f", offset=2, limit=2) == (
        "2\tb\n3\tc\n… 2 more line(s); read again with offset 4."
    )
    assert await output(handle, "read", path="f", offset=10) == ""
    assert await output(handle, "read", path="f", offset=4) == "4\td\n5\te"
    await _put(handle, "g", "\n".join(str(number) for number in range(10)))
    page = await output(handle, "read", path="g")
    assert page.splitlines()[0] == " 1\t0"
    assert page.splitlines()[9] == "10\t9"


@pytest.mark.spec("sandbox-manager:19.19")
async def test_empty_files_and_empty_lines_are_told_apart(handle: Handle) -> None:
    await _put(handle, "empty")
    await _put(handle, "line", "\n")
    assert await output(handle, "read", path="empty") == "/workspace/empty is empty."
    assert await output(handle, "read", path="line") == "1\t"


@pytest.mark.spec("sandbox-manager:19.20")
async def test_long_lines_are_cut(handle: Handle) -> None:
    await _put(handle, "f", "x" * 2001 + "\n" + "y" * 2000)
    assert await output(handle, "read", path="f") == f"1\t{'x' * 2000}…\n2\t{'y' * 2000}"


@pytest.mark.spec("sandbox-manager:19.20")
async def test_reading_a_folder_is_an_error(handle: Handle) -> None:
    await _put(handle, "d/f")
    with pytest.raises(Exception, match="/workspace/d can't be read: it is a directory"):
        await tool(handle, "read", path="d")


async def test_a_missing_file_is_named_by_its_resolved_path(handle: Handle) -> None:
    outcome = await tool(handle, "read", path="x/../y")
    assert outcome["code"] == "sandbox.not_found"
    assert "/workspace/y" in outcome["message"]


async def test_input_that_nobody_checked_is_read_as_javascript_reads_it(handle: Handle) -> None:
    await _put(handle, "undefined", "1\n2\n3\n4\n")
    assert await output(handle, "read", offset="2", limit="1") == (
        "2\t2\n… 2 more line(s); read again with offset 3."
    )
    assert await output(handle, "read", offset=None, limit=1.5) == (
        "1\t1\n… 3 more line(s); read again with offset 2."
    )
    assert (
        await output(handle, "read", offset=-1, limit=1)
        == "-1\t3\n… 5 more line(s); read again with offset 0."
    )
    assert (await tool(handle, "read", path=None))["code"] == "sandbox.not_found"


@pytest.mark.spec("sandbox-manager:19.25")
@pytest.mark.needs("network_rules")
async def test_links_out_of_the_workspace_show_nothing(handle: Handle) -> None:
    await _shell(handle, "ln -s /etc/passwd x; ln -s / y; ln -s ../../../../etc z")
    for path in ("x", "y/etc/passwd", "z/passwd", "/workspace/x"):
        assert (await tool(handle, "read", path=path))["code"] == "sandbox.not_found"
        assert await handle.read_bytes(f"/workspace/{path.removeprefix('/workspace/')}", 10**6) is None
    listing = await handle.list_files("/workspace", 10)
    assert listing is not None
    assert listing.entries == []
    assert await output(handle, "grep", pattern="root") == "No matches."
    assert await output(handle, "glob", pattern="**/passwd") == "No files matched."


@pytest.mark.needs("processes", "list_remove")
async def test_links_planted_while_a_tool_runs_lead_nowhere(handle: Handle) -> None:
    """A folder of the workspace is a link to a folder of the host, on and off, while tools go through it."""
    with tempfile.TemporaryDirectory(prefix="wt-race-", dir="/tmp") as name:
        outside = Path(name)
        outside.chmod(0o777)
        (outside / "file").write_text("secret")
        await _shell(handle, f"mkdir d; echo mine > d/file; ln -s {outside} away")
        flipping = asyncio.create_task(
            handle.exec(
                "for i in $(seq 100); do mv -T d e; cp -P away d; rm d; mv -T e d; done", SECOND, Signal()
            )
        )
        seen: set[str] = set()
        while not flipping.done():
            for path in ("/workspace/d/file", "/workspace/away/file"):
                found = await handle.read_bytes(path, 10**6)
                seen.add("absent" if found is None else found.decode())
            with contextlib.suppress(BackendError):
                await handle.write("/workspace/d/made", b"x")
            await handle.list_files("/workspace/d", 10)
        await flipping
        assert seen <= {"absent", "mine\n"}
        assert [path.name for path in outside.iterdir()] == ["file"]


# write


@pytest.mark.spec("sandbox-manager:19.21")
async def test_writing_makes_folders_and_counts_bytes(handle: Handle) -> None:
    assert await output(handle, "write", path="a/b/c.txt", content="é😀") == {
        "path": "/workspace/a/b/c.txt", "bytes": 6,
    }  # fmt: skip
    assert (await _shell(handle, "cat a/b/c.txt; echo more >> a/b/c.txt"))["stdout"] == "é😀"
    assert await output(handle, "write", path="/workspace/a/b/c.txt", content="") == {
        "path": "/workspace/a/b/c.txt", "bytes": 0,
    }  # fmt: skip
    assert (await _shell(handle, "wc -c < a/b/c.txt"))["stdout"].strip() == "0"


@pytest.mark.spec("sandbox-manager:19.21")
async def test_a_file_in_the_way_is_a_failure_and_a_folder_as_target_throws(handle: Handle) -> None:
    await _put(handle, "f")
    outcome = await tool(handle, "write", path="f/x", content="")
    assert outcome == {
        "kind": "failed",
        "code": "sandbox.write_failed",
        "message": "mkdir: cannot create directory ‘/workspace/f’: File exists",
    }
    await _put(handle, "d/x")
    with pytest.raises(Exception, match="/workspace/d can't be written"):
        await tool(handle, "write", path="d", content="")


@pytest.mark.needs("network_rules")
async def test_nothing_is_written_outside_of_the_workspace_and_tmp(handle: Handle) -> None:
    for path in ("/etc/motd", "/new/file", "../../x/y"):
        assert (await tool(handle, "write", path=path, content="x"))["code"] == "sandbox.write_failed"
    with pytest.raises(Exception, match="can't be written"):
        await tool(handle, "write", path="/file", content="x")
    await _put(handle, "/tmp/f", "x")
    assert (await _shell(handle, "cat /tmp/f; echo y > /new; ls /"))["stdout"].startswith("x")


# edit


@pytest.mark.spec("sandbox-manager:19.22")
async def test_an_edit_replaces_the_one_place_and_nothing_is_a_pattern(handle: Handle) -> None:
    await _put(handle, "f", "one two\r\nthree")
    assert await output(handle, "edit", path="f", old_string="two\r\n", new_string="$& \\1 ") == {
        "path": "/workspace/f", "replacements": 1,
    }  # fmt: skip
    assert (await _shell(handle, "cat f"))["stdout"] == "one $& \\1 three"


@pytest.mark.spec("sandbox-manager:19.22")
async def test_edits_that_fit_not_once_are_refused_in_order(handle: Handle) -> None:
    await _put(handle, "f", "aaa b b")
    assert (await tool(handle, "edit", path="no", old_string="x", new_string="x"))[
        "code"
    ] == "sandbox.not_found"
    assert (await tool(handle, "edit", path="f", old_string="x", new_string="x"))[
        "code"
    ] == "sandbox.edit_noop"
    assert (await tool(handle, "edit", path="f", old_string="x", new_string="y"))["code"] == (
        "sandbox.edit_no_match"
    )
    several = await tool(handle, "edit", path="f", old_string="b", new_string="c", replace_all="yes")
    assert several["code"] == "sandbox.edit_not_unique"
    assert "2 times" in several["message"]
    assert (await output(handle, "edit", path="f", old_string="aa", new_string="x"))["replacements"] == 1
    assert (await output(handle, "edit", path="f", old_string="b", new_string="c", replace_all=True)) == {
        "path": "/workspace/f", "replacements": 2,
    }  # fmt: skip
    assert (await _shell(handle, "cat f"))["stdout"] == "xa c c"


# grep


@pytest.mark.spec("sandbox-manager:19.23")
async def test_grep_prints_paths_numbers_and_lines(handle: Handle) -> None:
    await _put(handle, "src/a.py", "def f():\n    return 1\n")
    await _put(handle, "b.txt", "Return\n")
    await _put(handle, ".git/x", "return\n")
    assert await output(handle, "grep", pattern="return [0-9]+") == "./src/a.py:2:    return 1"
    assert await output(handle, "grep", pattern="return", path="src/a.py") == "2:    return 1"
    found = await output(handle, "grep", pattern="return", ignore_case=True)
    assert sorted(found.splitlines()) == [
        "./.git/x:1:return",
        "./b.txt:1:Return",
        "./src/a.py:2:    return 1",
    ]
    assert await output(handle, "grep", pattern="return", glob="*.py") == "./src/a.py:2:    return 1"
    assert (
        await output(handle, "grep", pattern="f", path="/workspace/src") == "/workspace/src/a.py:1:def f():"
    )
    assert await output(handle, "grep", pattern="nothing") == "No matches."


@pytest.mark.spec("sandbox-manager:19.23")
async def test_grep_says_what_it_can_t_do(handle: Handle) -> None:
    await _put(handle, "f", "a-v\n")
    for pattern, message in (("[", "Invalid regular expression"), ("(a", "Unmatched ( or \\(")):
        broken = await tool(handle, "grep", pattern=pattern)
        assert (broken["code"], broken["message"]) == ("sandbox.grep_failed", f"grep: {message}")
    assert await output(handle, "grep", pattern="-v") == "./f:1:a-v"
    missing = await tool(handle, "grep", pattern="a", path="none")
    assert missing["message"] == "grep: none: No such file or directory"
    await _shell(handle, "printf 'a\\000b\\n' > bin; rm f")
    binary = await tool(handle, "grep", pattern="b")
    assert (binary["code"], binary["message"]) == ("sandbox.grep_failed", "grep: ./bin: binary file matches")


@pytest.mark.spec("sandbox-manager:19.23")
async def test_grep_shows_so_many_lines_and_says_that_there_are_more(handle: Handle) -> None:
    await _put(handle, "f", "x\n" * 201)
    found = (await output(handle, "grep", pattern="x")).split("\n")
    assert len(found) == 201
    assert found[200] == "… more matches omitted; narrow the search."
    await _put(handle, "f", "x\n" * 200)
    assert len((await output(handle, "grep", pattern="x")).split("\n")) == 200
    assert await output(handle, "grep", pattern="x", max_results=1) == (
        "./f:1:x\n… more matches omitted; narrow the search."
    )


async def test_grep_cuts_long_lines(handle: Handle) -> None:
    await _put(handle, "f", "x" * 3000)
    assert await output(handle, "grep", pattern="x") == ("./f:1:" + "x" * 3000)[:2000] + "…"


async def test_grep_follows_the_link_it_is_given_and_no_other(handle: Handle) -> None:
    await _put(handle, "d/f", "x\n")
    await _shell(handle, "ln -s d l; ln -s d/f m")
    assert await output(handle, "grep", pattern="x") == "./d/f:1:x"
    assert await output(handle, "grep", pattern="x", path="l") == "l/f:1:x"
    assert await output(handle, "grep", pattern="x", path="m") == "1:x"


async def test_grep_keeps_shell_characters_plain(handle: Handle) -> None:
    await _put(handle, "it's $(here)/f'g", "a'b $HOME\n")
    assert await output(handle, "grep", pattern="a'b .HOME", path="it's $(here)") == (
        "it's $(here)/f'g:1:a'b $HOME"
    )


# glob


@pytest.mark.spec("sandbox-manager:19.24")
async def test_glob_matches_base_names_anywhere_or_paths(handle: Handle) -> None:
    for path in ("a.txt", "d/b.txt", "d/e/c.py", ".env", ".git/d.txt", "d/.git/e.txt", "d/.x/f.txt"):
        await _put(handle, path)
    assert await output(handle, "glob", pattern="*.txt") == (
        "/workspace/a.txt\n/workspace/d/.x/f.txt\n/workspace/d/b.txt"
    )
    assert await output(handle, "glob", pattern="**/*.py") == "/workspace/d/e/c.py"
    assert await output(handle, "glob", pattern="d/*") == "/workspace/d/b.txt"
    assert await output(handle, "glob", pattern="**/*.txt") == "/workspace/a.txt\n/workspace/d/b.txt"
    assert await output(handle, "glob", pattern=".*") == "/workspace/.env"
    assert await output(handle, "glob", pattern="*.{py,env}") == "/workspace/d/e/c.py"
    assert await output(handle, "glob", pattern="*.py", path="d/e/") == "/workspace/d/e/c.py"
    assert await output(handle, "glob", pattern="*.md") == "No files matched."
    assert await output(handle, "glob", pattern="*", path="none") == "No files matched."


@pytest.mark.spec("sandbox-manager:19.24")
async def test_glob_shows_500_files(handle: Handle) -> None:
    await _shell(handle, "for i in $(seq 100 600); do echo > f$i; done")
    found = (await output(handle, "glob", pattern="f*")).split("\n")
    assert len(found) == 501
    assert found[500] == "… more files omitted; narrow the pattern."
    await _shell(handle, "rm f100")
    assert len((await output(handle, "glob", pattern="f*")).split("\n")) == 500


async def test_glob_lists_no_links_and_no_folders(handle: Handle) -> None:
    await _put(handle, "d/f")
    await _shell(handle, "ln -s d l; ln -s d/f m")
    assert await output(handle, "glob", pattern="**") == "/workspace/d/f"
    assert await output(handle, "glob", pattern="*", path="l") == "No files matched."


async def test_braces_that_stand_for_too_many_names_are_an_error(handle: Handle) -> None:
    with pytest.raises(Exception, match="braces"):
        await tool(handle, "glob", pattern="{1..99999}")


# bytes


@pytest.mark.spec("sandbox-manager:19.27")
async def test_bytes_come_as_they_are(handle: Handle) -> None:
    data = bytes(range(256)) * 10
    await handle.write("/workspace/f", data)
    assert await handle.read_bytes("/workspace/f", len(data)) == data
    assert (await _shell(handle, "cat f > g; cp g h; cat h | cat > i"))["stderr"] == ""
    assert await handle.read_bytes("/workspace/i", len(data)) == data
    assert await handle.read_bytes("/workspace/g", len(data)) == data


@pytest.mark.needs("list_remove")
async def test_a_released_handle_refuses_work(driver: Backend) -> None:
    opened = await driver.open(spec(fresh_key(), network=CLOSED))
    opened.release()
    opened.release()
    with pytest.raises(Exception, match="closed"):
        await opened.read_text("/workspace/f")


@pytest.mark.needs("list_remove")
async def test_workspaces_at_once_do_not_see_each_other(driver: Backend) -> None:
    opened = [await driver.open(spec(fresh_key(), network=CLOSED)) for _ in range(6)]
    async with asyncio.timeout(BOUND):
        results = await asyncio.gather(
            *(_shell(handle, f"echo {number} > f; cat f; ls") for number, handle in enumerate(opened))
        )
    assert [result["stdout"] for result in results] == [f"{number}\nf\n" for number in range(6)]
    for handle in opened:
        handle.release()


async def test_nothing_is_left_open(driver: Backend) -> None:
    opened = await driver.open(spec(fresh_key(), network=CLOSED))
    await _shell(opened, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await _shell(opened, "echo x > f; cat f")
        await tool(opened, "read", path="f")
        await tool(opened, "grep", pattern="x")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    opened.release()
