"""The shell command that searches, and what its output means.

`grep -r` looks at files in the order in which a folder holds them. Here `find` names the files, `sort` puts
them into the byte order of their paths, and grep gets them as arguments: what it prints of each is the same.
Where ripgrep is installed it may leave files out in between (see `candidates`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from services.sandbox_manager.contract import ExecResult, GrepQuery, Output, output_of
from services.sandbox_manager.search.candidates import candidate_pattern
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import quote

Exec = Callable[[str, float, Signal], Awaitable[ExecResult]]
FACTS: Final = "grep --version 2>&1 | head -n 1; echo; command -v rg >/dev/null 2>&1 && echo ripgrep"
"""Prints what `read_facts` reads."""
BATCH: Final = 4000
"""Files that ripgrep is given at once: a search that has its lines ends after a batch."""
_COMPLAINT: Final = "grep: "
_GNU: Final = "(GNU grep)"
_OTHERS: Final = re.compile(r"^(?:find|rg|xargs|sort): ", re.MULTILINE)
_WILD: Final = re.compile(r"[*?\[]")


class GrepProgram:
    """What searches in a workspace: GNU grep or another one, with or without ripgrep."""

    def __init__(self, version: str, ripgrep: bool) -> None:
        self.version = version
        self.ripgrep = ripgrep

    @property
    def problem(self) -> str | None:
        """What to say of a grep that isn't GNU's."""
        if _GNU in self.version:
            return None
        return f"grep is not GNU grep ({self.version or 'none is there'}): its output may differ"

    async def search(self, query: GrepQuery, run: Exec, timeout_ms: float, signal: Signal) -> Output:
        """Runs a search; `run` is how commands are run in the workspace."""
        began = time.monotonic()
        pattern = candidate_pattern(query.pattern, query.ignore_case) if self.ripgrep else None
        result = await run(search_command(query, pattern), timeout_ms, signal)
        if not result.stdout.strip("\n") and not result.killed and _OTHERS.search(result.stderr):
            # Something could not be looked at, and nothing was found elsewhere: the complaint is grep's own.
            left_ms = timeout_ms - (time.monotonic() - began) * 1000
            result = await run(query.command, max(left_ms, 1), signal)
        return output_of(replace(result, stderr=_without_repeats(result.stderr)))


def read_facts(stdout: str) -> GrepProgram:
    """What the output of FACTS says."""
    lines = stdout.split("\n")
    return GrepProgram(lines[0].strip(), "ripgrep" in lines[1:])


def _without_repeats(stderr: str) -> str:
    """What grep thinks of a pattern stands there once, however often it was started."""
    seen: set[str] = set()
    kept: list[str] = []
    for line in stderr.split("\n"):
        if not line.startswith(_COMPLAINT) or line not in seen:
            kept.append(line)
            seen.add(line)
    return "\n".join(kept)


def search_command(query: GrepQuery, candidates: str | None) -> str:
    """The search of a query as a shell command; `candidates` is ripgrep's pattern, if it may help."""
    path = _trimmed(query.path)
    if not path:
        return query.command
    # A path that find would take for something else is given with a ./ that is taken off its output again.
    odd = path.startswith(("-", "(", ")", "!", ","))
    names = [f"find -H {quote('./' + path if odd else path)} -type f"]
    if query.include is not None:
        names.append(f"-name {quote(_find_pattern(query.include))}")
    pipeline = [" ".join([*names, "-print0"])]
    if odd:
        pipeline.append("sed -z 's|^\\./||'")
    pipeline.append("LC_ALL=C sort -z")
    flags = " -i" if query.ignore_case else ""
    grep = f"grep -nHE{flags} -e {quote(query.pattern)} --"
    if candidates is None:
        pipeline.append(f"xargs -0 {grep}")
    else:
        pipeline.append(_with_candidates(grep, candidates))
    searching = " | ".join([*pipeline, f"head -n {query.lines}"])
    return f"if [ -d {quote(path)} ]; then {searching}; else {query.command}; fi"


def _with_candidates(grep: str, candidates: str) -> str:
    """Batch by batch, so that the order stays; a batch whose grep was cut off by `head` ends the search."""
    find = f"rg --no-config -l0a -E none -uuu -e {quote(candidates)} --"
    inner = f'{find} "$@" | LC_ALL=C sort -z | xargs -0 -r {grep}; [ $? -eq 125 ] && exit 255; exit 0'
    return f"xargs -0 -r -n {BATCH} sh -c {quote(inner)} sh"


def _find_pattern(include: str) -> str:
    """`--include` as `-name` has it: without wildcards grep compares names, after taking backslashes off."""
    unescaped = re.sub(r"\\.", "", include, flags=re.DOTALL)
    if _WILD.search(unescaped) is not None:
        return include
    plain = re.sub(r"\\(.)", r"\1", include, flags=re.DOTALL)
    return re.sub(r"([*?\[\\])", r"\\\1", plain)


def _trimmed(path: str) -> str:
    """Slashes at the end as grep trims them: one is left."""
    plain = path.rstrip("/")
    ends = len(path) - len(plain)
    if not plain:
        return "//" if ends == 2 else "/" * min(ends, 1)
    return plain + "/" * min(ends, 1)
