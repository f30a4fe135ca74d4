"""grep as a program: byte order of paths, and the same bytes with ripgrep's help and without."""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.sandbox_manager.contract import ExecResult, GrepQuery
from services.sandbox_manager.emulated.search import grep as emulated_grep
from services.sandbox_manager.search.candidates import candidate_pattern
from services.sandbox_manager.search.program import GrepProgram, read_facts, search_command
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.tools.grep import _query
from tests.sandbox_manager.test_search import ENVIRONMENT, PATTERNS, needs_gnu_grep

needs_ripgrep = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep (Debian package) is missing")
GNU = "grep (GNU grep) 3.8"


def _asked(pattern: str, **input_: Any) -> GrepQuery:
    most = input_.pop("max_results", 10**6)
    return _query({"pattern": pattern, **input_}, most)


def _run(folder: Path, command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


async def _search(folder: Path, query: GrepQuery, *, ripgrep: bool) -> tuple[list[str], str]:
    async def run(command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        ran = _run(folder, command)
        return ExecResult(
            ran.returncode, ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace")
        )

    output = await GrepProgram(GNU, ripgrep).search(query, run, 30_000, Signal())
    return [line for line in output.lines if line], output.stderr


# Candidates


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("abc", True), ("a b\tc", True), ("def main", True), ("a.c", True), ("x+", True), ("ab*", True),
        ("(a|b)c", True), ("a|b", True), ("a{2,3}", True), ("a{2}", True), ("a{2,}", True), ("^abc", True),
        ("abc$", True), ("^a$|b", True), ("[a-c]x", True), ("[^a]x", True), ("[[:digit:]]", True),
        (r"a\.b", True), (r"\(x\)", True), ("é", True), ("a\nb", True), ("import os, sys", True), ("(a)", True),
        ("a*", False), ("", False), ("x\n", False), ("(a|)", False), ("()", False), ("^", False), ("$", False),
        ("a^b", False), ("a$b", False), ("^*", False), ("*a", False), ("a**", False), ("a{1", False),
        ("a{,2}b", False), ("a{2,1}", False), ("a{0}b", False), ("a{999}", False), ("{", False), ("a}", False),
        (r"\w", False), (r"\bfoo", False), (r"(a)\1", False), (r"\d", False), ("a\\", False), ("[", False),
        ("[]a]", False), ("[a", False), ("[[.a.]]", False), ("[[=a=]]", False), ("[[:foo:]]", False),
        ("[a-", False), ("[z-a]", False), ("[a-z-9]", False), ("[é]", False), ("(a", False), ("a)", False),
        ("a]", False), ("\0", False), ("\udc80", False), ("x" * 1001, False), ("(" * 60 + "a" + ")" * 60, False),
    ],
)  # fmt: skip
def test_only_what_is_proven_has_candidates(pattern: str, found: bool) -> None:
    assert (candidate_pattern(pattern, ignore_case=False) is not None) is found


def test_letters_beyond_ascii_are_not_compared_without_case() -> None:
    assert candidate_pattern("é", ignore_case=True) is None
    assert candidate_pattern("K", ignore_case=True) == "(?i:(?:K))"


_LINES = st.lists(
    st.text(st.sampled_from([*"aabkKsSéÉſK019 .-_(){}\t\r"]), max_size=8).map(str.encode)
    | st.binary(max_size=6).map(lambda data: data.replace(b"\n", b"")),
    max_size=6,
)
_ATOMS = st.sampled_from(
    [*"abkKsSé01 -_", ".", "[ab]", "[^a]", "[a-k]", "[[:alpha:]]", "[[:digit:]]", "[[:space:]]",
     "[[:upper:]]", "[^[:lower:]]", r"\.", r"\(", "(a|b)", "(ab|K)", "(s)"]
)  # fmt: skip
_PIECES = st.tuples(_ATOMS, st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"])).map(
    "".join
)
_PATTERNS = st.tuples(
    st.sampled_from(["", "", "^"]), st.lists(_PIECES, min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "", "$"]), st.sampled_from(["", "", "|k", "\ns"]),
).map("".join)  # fmt: skip


@needs_gnu_grep
@needs_ripgrep
@settings(max_examples=150, deadline=None)
@given(lines=_LINES, pattern=_PATTERNS, ignore_case=st.booleans())
def test_every_file_with_a_line_is_a_candidate(lines: list[bytes], pattern: str, ignore_case: bool) -> None:
    wanted = candidate_pattern(pattern, ignore_case)
    if wanted is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(b"\n".join(lines))
        flags = ["-i"] if ignore_case else []
        theirs = subprocess.run(
            ["grep", "-qaE", *flags, "-e", pattern, "f"], cwd=folder, env=ENVIRONMENT, check=False
        )
        ours = subprocess.run(
            ["rg", "--no-config", "-laE", "none", "-uuu", "-e", wanted, "--", "f"],
            cwd=folder, env=ENVIRONMENT, capture_output=True, check=False,
        )  # fmt: skip
    assert ours.returncode in {0, 1}, ours.stderr
    if theirs.returncode == 0:
        assert ours.returncode == 0


# The same bytes


def _tree(folder: Path, chance: random.Random) -> None:
    names = ("t", "u.py", "s/q.x", "s/.h", "s/.git/c", "s-t/z.py", "s.a", ".dot", "-odd/f", "(x)/y", "a b/c'd",
             ".gitignore", "s/ignored.log", "é/ü", "n\nl")  # fmt: skip
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        lines = ("".join(chance.choice("aab{1}x*()|[]\\.-éÉüß d_0kKſ") for _ in range(8)) for _ in range(12))
        (folder / name).write_text("\n".join(lines))
    (folder / ".gitignore").write_text("*.log\ns/\n")
    (folder / "bin").write_bytes(b"aab\0aab\n")
    (folder / "utf16").write_bytes("aab aab\n".encode("utf-16"))
    (folder / "latin").write_bytes(b"aab \xe9\nxx\n")
    (folder / "link").symlink_to("s")
    (folder / "file").symlink_to("t")
    os.mkfifo(folder / "fifo")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wt-grep-"))
    _tree(folder, random.Random(8))
    yield folder
    shutil.rmtree(folder)


@needs_gnu_grep
@needs_ripgrep
@pytest.mark.parametrize("include", [None, "*.py", "?", "[su]*", "q.x", r"\q.x", "*\\", "s/*", "é*"])
@pytest.mark.parametrize(
    "path", [".", "s", "s/", "s//", "./s", "-odd", "(x)", "link", "a b", "t", "none", "é", "/"]
)
async def test_paths_and_names_print_the_same_three_times(
    tree: Path, path: str, include: str | None, tmp_path: Path
) -> None:
    if path == "/":
        path = f"{tree}//"
    more = {"path": path} | ({} if include is None else {"glob": include})
    for pattern in ("aab", "[[:digit:]]", "k"):
        query = _asked(pattern, **more)
        plain = _run(tree, query.command)
        lines = sorted(line for line in plain.stdout.decode("utf-8", "replace").split("\n") if line)
        without = await _search(tree, query, ripgrep=False)
        assert sorted(without[0]) == lines
        assert without == await _search(tree, query, ripgrep=True)
        if not lines:
            assert sorted(without[1].split("\n")) == sorted(plain.stderr.decode().split("\n"))


@needs_gnu_grep
@needs_ripgrep
@pytest.mark.parametrize("ignore_case", [False, True])
async def test_all_patterns_print_the_same_with_ripgrep_and_without_and_in_the_emulated_shell(
    tree: Path, ignore_case: bool
) -> None:
    chance = random.Random(22)
    atoms = [
        *"abéxkK",
        ".",
        "[ab]",
        "[^a]",
        "[[:alpha:]]",
        "(a)",
        "(b|a)",
        "a|b",
        "^",
        "$",
        "*",
        "+",
        "{2}",
        r"\.",
    ]
    patterns = PATTERNS + [
        "".join(chance.choice(atoms) for _ in range(chance.randint(1, 5))) for _ in range(40)
    ]
    for pattern in patterns:
        query = _asked(pattern, ignore_case=ignore_case)
        without = await _search(tree, query, ripgrep=False)
        assert without == await _search(tree, query, ripgrep=True), pattern


@needs_gnu_grep
async def test_files_come_in_the_byte_order_of_their_paths_as_in_the_emulated_shell(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    _tree(workspace, random.Random(9))
    (workspace / "n\nl").unlink()
    lines, _ = await _search(workspace, _asked("a"), ripgrep=False)
    paths = list(dict.fromkeys(line.split(":")[0] for line in lines))
    assert paths == sorted(paths, key=os.fsencode)
    assert len(paths) > 8
    entry = os.open(tmp_path, os.O_PATH)
    printed = emulated_grep(entry, "a", ".", include=None, ignore_case=False, lines=10**6)
    os.close(entry)
    assert lines == printed.lines


@needs_gnu_grep
@needs_ripgrep
@pytest.mark.parametrize("most", [1, 2, 7])
async def test_a_search_ends_with_its_lines(tree: Path, most: int) -> None:
    query = _asked("a", max_results=most)
    without = await _search(tree, query, ripgrep=False)
    assert len(without[0]) == most + 1
    assert without[0] == (await _search(tree, query, ripgrep=True))[0]


@needs_gnu_grep
async def test_what_grep_says_of_a_pattern_is_told_once(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"a-rather-long-name-{'x' * 60}-{number}").touch()
    for pattern, said in (("*a", "warning: * at start of expression"), ("[", "Invalid regular expression")):
        assert await _search(tmp_path, _asked(pattern), ripgrep=False) == ([], f"grep: {said}\n")


@needs_gnu_grep
async def test_a_bad_pattern_is_told_where_there_are_no_files(tmp_path: Path) -> None:
    for ripgrep in (False, True):
        assert await _search(tmp_path, _asked("["), ripgrep=ripgrep) == (
            [],
            "grep: Invalid regular expression\n",
        )


# Facts


def test_a_grep_that_is_not_gnu_s_is_named() -> None:
    assert read_facts(f"{GNU}\n\nripgrep\n").problem is None
    assert read_facts(f"{GNU}\n\nripgrep\n").ripgrep
    assert not read_facts(f"{GNU}\n\n").ripgrep
    assert "BusyBox" in (read_facts("BusyBox v1.36\n\n").problem or "")
    assert "none is there" in (read_facts("").problem or "")


def test_the_command_of_the_event_stays_that_of_the_tool() -> None:
    query = _asked("a", path="s")
    assert query.command == "grep -rnE -e 'a' -- 's' | head -n 1000001"
    assert search_command(query, None).endswith(f"else {query.command}; fi")
