"""`whippletree doctor`: looks at this machine and says what will work, what will not, and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from cli.doctor.finding import Finding
from cli.doctor.machine import machine
from cli.doctor.stack import stack
from cli.output import paint, wants_colour
from cli.plain_text import plain
from cli.up import state_path

ALL_WELL, PROBLEMS = 0, 1
_WORDS: Final = {"ok": ("ok", "32"), "note": ("note", "33"), "problem": ("PROBLEM", "31")}


def run_doctor(*, as_json: bool, environ: Mapping[str, str]) -> int:
    """Prints the findings; 1 when there is a problem, else 0."""
    folder = state_path(environ).absolute()
    found = [*machine(environ, folder), *stack(environ, folder)]
    if as_json:
        fields = ("what", "level", "found", "fix")
        print(
            json.dumps([{name: getattr(one, name) for name in fields} for one in found], ensure_ascii=False)
        )
    else:
        for line in lines(found, colour=wants_colour()):
            print(line)
    return PROBLEMS if any(one.level == "problem" for one in found) else ALL_WELL


def lines(found: Sequence[Finding], *, colour: bool) -> list[str]:
    """One line for each finding, one more for what to do, and a summary."""
    shown = []
    width = max(len(one.what) for one in found)
    for one in found:
        word, code = _WORDS[one.level]
        shown.append(f"{paint(f'{word:<7}', code, colour)}  {one.what:<{width}}  {plain(one.found)}")
        if one.level != "ok" and one.fix:
            shown.append(f"{'':<7}  {'':<{width}}  -> {plain(one.fix)}")
    problems = sum(one.level == "problem" for one in found)
    shown += ["", f"{problems} of {len(found)} checks found a problem." if problems else "No problem found."]
    return shown
