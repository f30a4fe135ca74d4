"""`grep`: lines that match an extended regular expression (sandbox-manager 9.7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import GrepQuery, Handle
from services.sandbox_manager.javascript import given, number_text, text_of, to_number, to_string, trim
from services.sandbox_manager.outcomes import GREP_FAILED, ToolResult, completed, failed
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import ELLIPSIS, cut_line, quote

DEFAULT_RESULTS: Final = 200
TIMEOUT_MS: Final = 60_000


async def grep(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Shows at most `max_results` matching lines of the files below `path`."""
    most = to_number(input_["max_results"]) if given(input_, "max_results") else DEFAULT_RESULTS
    query = _query(input_, most)
    report: dict[str, JsonValue] = {"command": query.command}
    if math.isnan(most) or most < 0:
        return ToolResult(failed(GREP_FAILED, "max_results is not a number of lines."), report)
    output = await handle.grep(query, TIMEOUT_MS, signal)
    lines = [line for line in output.lines if line]
    if not lines:
        complaint = trim(output.stderr)
        if not complaint and output.timed_out:
            complaint = f"The search did not end within {TIMEOUT_MS // 1000} s and was stopped."
        outcome = failed(GREP_FAILED, complaint) if complaint else completed("No matches.")
        return ToolResult(outcome, report)
    shown = "\n".join(cut_line(line) for line in lines[: query.lines - 1])
    if len(lines) >= query.lines or output.cut or output.timed_out:
        shown += f"\n{ELLIPSIS} more matches omitted; narrow the search."
    return ToolResult(completed(shown), report)


def _query(input_: Mapping[str, JsonValue], most: float) -> GrepQuery:
    pattern = text_of(input_, "pattern")
    path = to_string(input_["path"]) if given(input_, "path") else "."
    include = to_string(input_["glob"]) if given(input_, "glob") else None
    ignore_case = _truthy(input_.get("ignore_case"))
    parts = ["grep -rnE"]
    if ignore_case:
        parts.append("-i")
    if include is not None:
        parts.append(f"--include={quote(include)}")
    parts += ["-e", quote(pattern), "--", quote(path)]
    command = f"{' '.join(parts)} | head -n {number_text(most + 1)}"
    lines = int(most) + 1 if math.isfinite(most) else 2**31
    return GrepQuery(pattern, path, include, ignore_case, lines, command)


def _truthy(value: JsonValue) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    return bool(value) or isinstance(value, list | dict)
