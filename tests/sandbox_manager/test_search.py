"""The emulated driver's grep and find beside the system's own (GNU grep 3.8 prints the same)."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.sandbox_manager.emulated.filesystem import to_bytes
from services.sandbox_manager.emulated.posix_regex import BadPattern, compile_patterns
from services.sandbox_manager.emulated.search import Printed, file_name_pattern, find_files, grep

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def _has_gnu_grep() -> bool:
    if shutil.which("grep") is None:
        return False
    version = subprocess.run(["grep", "--version"], capture_output=True, text=True, check=False).stdout
    return version.startswith("grep (GNU grep) 3.8")


needs_gnu_grep = pytest.mark.skipif(
    not _has_gnu_grep(), reason="GNU grep 3.8 (Debian package grep) is missing"
)


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "workspace").mkdir()
    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def workspace(entry: int, tmp_path: Path) -> Path:
    return tmp_path / "workspace"


def _ours(
    entry: int,
    pattern: str,
    path: str = ".",
    include: str | None = None,
    *,
    ignore_case: bool = False,
    lines: int = 10**6,
) -> Printed:
    return grep(entry, pattern, path, include=include, ignore_case=ignore_case, lines=lines)


def _theirs(
    workspace: Path, pattern: str, path: str = ".", include: str | None = None, ignore_case: bool = False
) -> tuple[list[bytes], list[bytes]]:
    flags = (["-i"] if ignore_case else []) + ([] if include is None else [f"--include={include}"])
    result = subprocess.run(
        ["grep", "-rnE", *flags, "-e", pattern, "--", path],
        cwd=workspace,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    return sorted(result.stdout.split(b"\n")[:-1]), sorted(result.stderr.split(b"\n"))


def _same(
    entry: int,
    workspace: Path,
    pattern: str,
    path: str = ".",
    include: str | None = None,
    *,
    ic: bool = False,
) -> None:
    printed = _ours(entry, pattern, path, include, ignore_case=ic)
    ours = sorted(map(to_bytes, printed.lines)), sorted(to_bytes(printed.stderr).split(b"\n"))
    assert ours == _theirs(workspace, pattern, path, include, ic)


PATTERNS = [
    "a", "é", "É", ".", "^$", "^a", "a$", "a.b", "a*b", "a+", "a?b", "(a|b)c", "a{2}", "a{,2}b", "a{1",
    "{1", "a{2,1}", "a{99999}", "[ab]", "[^ab]", "[]a]", "[^]a]", "[a-c]", "[a-]", "[--/]", "[z-a]",
    "[a-a-z]", "[é]", "[^é]", "[é-ü]", "[[:alpha:]]", "[[:upper:]]", "[[:space:]]", "[[:punct:]]",
    "[[:digit:][:space:]]", "[[:foo:]]", "[:alpha:]", "[[.a.]]", "[[.hyphen.]]", "[[=a=]]", "[a-[.z.]]",
    r"[\d]", r"\w+", r"\W", r"\s", r"\S", r"\bfoo\b", r"\Bo", r"\<b", r"o\>", r"\`a", r"b\'", r"(a)\1",
    r"\1", r"(a)\2", r"\d", r"\n", r"\/", r"\.", "a\\", "[", "[a", "(", ")", "(a", "a)", "()", "|",
    "a||b", "*a", "^*", "+a", "(*a)", "a|*b", "x**", "(a|b)*{3}", "ab\nfoo", "ab\n(", "", "$^", "a^b",
    "^^a",
]  # fmt: skip


@needs_gnu_grep
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_patterns_mean_what_gnu_grep_says(
    entry: int, workspace: Path, pattern: str, ignore_case: bool
) -> None:
    text = "a\nab\naab\nb c\nfoo bar\nfoobar\n{1}\na{1\n(x)\n[y]\n.\n\\d\n é É ü\n1 2\t3\n\n*a\na^b\n-/\nend"
    (workspace / "f").write_text(text)
    _same(entry, workspace, pattern, ic=ignore_case)


@needs_gnu_grep
def test_random_patterns_over_random_files_print_the_same(entry: int, workspace: Path) -> None:
    chance = random.Random(38)
    for name in ("t", "u.py", "s/q.x", "s/.h", "s/.git/c", "s-t/z.py", "s.a", ".dot"):
        (workspace / name).parent.mkdir(exist_ok=True)
        lines = ("".join(chance.choice("aab{1}^x*()|[]\\.-éÉüß d_0") for _ in range(8)) for _ in range(12))
        (workspace / name).write_text("\n".join(lines))
    atoms = [*"abéx.", "[ab]", "[^a]", "[[:alpha:]]", "[[:punct:]]", "(a)", "(b|a)", "a|b", r"\w", r"\W", r"\b", r"\<",
             "^", "$", "*", "+", "?", "{2}", "{1,}", r"\.", r"\d", "]", "}", "[é]"]  # fmt: skip
    tried = 0
    while tried < 400:
        pattern = "".join(chance.choice(atoms) for _ in range(chance.randint(1, 5)))
        if re.search(r"(^|[(|^$]|\\[<b])[{*+?]", pattern) or r"\d" in pattern:
            continue  # where grep's own two engines differ from each other
        tried += 1
        path = chance.choice([".", "t", "s", "s/", "./u.py", "s/q.x", "none", "s-t"])
        include = chance.choice([None, None, "*.py", "*", "[u]*", "s/*.x", "*.[!p]*", "?"])
        _same(entry, workspace, pattern, path, include, ic=chance.random() < 0.3)


@needs_gnu_grep
@pytest.mark.parametrize(
    "data",
    [
        b"a\0b\na\n",
        b"ab\xff\na\n",
        b"a\xff\n",
        b"x\n" * 60_000 + b"a\0\n",
        b"a\n" + b"x\n" * 60_000 + b"\0\na\n",
        b"a\r\n",
        b"a",
        b"",
        b"\n\n",
        b"\xef\xbb\xbfa\n",
    ],
)
@pytest.mark.parametrize("pattern", ["a", ".", "^$", "x$"])
def test_binary_and_odd_files_are_told_the_same(
    entry: int, workspace: Path, data: bytes, pattern: str
) -> None:
    (workspace / "f").write_bytes(data)
    (workspace / "g").write_bytes(b"other a\n")
    _same(entry, workspace, pattern)
    _same(entry, workspace, pattern, "f")


@needs_gnu_grep
def test_special_files_and_links_are_treated_the_same(entry: int, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("a\n")
    (workspace / "l").symlink_to("d")
    (workspace / "dangling").symlink_to("none")
    os.mkfifo(workspace / "d" / "fifo")
    for path in (".", "d", "d/", "l", "l/", "dangling", "none", "d/f/", "d/../d", ""):
        _same(entry, workspace, "a", path)


def test_files_come_in_the_byte_order_of_their_paths(entry: int, workspace: Path) -> None:
    for name in ("a/x", "a-b", "a.txt", "A", "é", "b/c/d", "b.c"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("a\n")
    expected = sorted((f"./{n}" for n in ("a/x", "a-b", "a.txt", "A", "é", "b/c/d", "b.c")), key=str.encode)
    assert [line.removesuffix(":1:a") for line in _ours(entry, "a").lines] == expected
    found = find_files(entry, "/workspace", 100).lines
    assert [f".{path.removeprefix('/workspace')}" for path in found] == expected


def test_the_search_ends_with_the_line_it_was_asked_for(entry: int, workspace: Path) -> None:
    (workspace / "f").write_text("a\n" * 100)
    (workspace / "g").write_bytes(b"a\0")
    printed = _ours(entry, "a", lines=3)
    assert (printed.lines, printed.stderr) == (["./f:1:a", "./f:2:a", "./f:3:a"], "")


@pytest.mark.parametrize(
    ("root", "relative"),
    [
        ("/workspace", ["a", "d/b", "d/gitx/.git.d/c"]),
        ("/workspace/", ["a", "d/b", "d/gitx/.git.d/c"]),
        ("/workspace/d", ["d/b", "d/gitx/.git.d/c"]),
        ("/workspace/a", ["a"]),
        ("/workspace/l", []),
        ("/workspace/l/", ["l/b", "l/gitx/.git.d/c"]),
        ("/workspace/none", []),
        ("/workspace/.git", []),
        ("/etc", []),
    ],
)
def test_files_are_found_as_find_finds_them(
    entry: int, workspace: Path, root: str, relative: list[str]
) -> None:
    for name in ("a", "d/b", "d/gitx/.git.d/c", ".git/x", "d/.git/y"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("")
    (workspace / "l").symlink_to("d")
    os.mkfifo(workspace / "fifo")
    assert find_files(entry, root, 100).lines == [f"/workspace/{name}" for name in relative]


def test_no_more_files_are_found_than_asked_for(entry: int, workspace: Path) -> None:
    for number in range(5):
        (workspace / str(number)).write_text("")
    assert find_files(entry, "/workspace", 3).lines == [f"/workspace/{n}" for n in range(3)]


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*.py", ".a.py", True),
        ("a?c", "abc", True),
        ("[!a]", "b", True),
        ("[^a]", "a", False),
        ("[a-c]x", "bx", True),
        ("[]]", "]", True),
        ("[", "[", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("[[:digit:]]", "5", True),
        ("[z-a]", "b", False),
        ("a", "ab", False),
        ("*", "a/b", True),
    ],
)
def test_file_name_patterns_match_as_fnmatch_does(pattern: str, name: str, fits: bool) -> None:
    assert (file_name_pattern(pattern).fullmatch(name) is not None) is fits


@pytest.mark.parametrize("pattern", ["(" * 5000 + ")" * 5000, "a{32768}", "(" * 5000])
def test_monstrous_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern, match="Regular expression too big"):
        compile_patterns(pattern, False)


def test_deep_patterns_are_taken() -> None:
    assert compile_patterns("(" * 50 + "a" + ")" * 50, False).matches("xay")
