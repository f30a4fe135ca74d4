"""`bash`: one command, from nothing to nothing but files (sandbox-manager 9.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Handle
from services.sandbox_manager.javascript import given, text_of, to_number, to_string
from services.sandbox_manager.outcomes import ToolResult, completed
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import ELLIPSIS, cut_middle

DEFAULT_TIMEOUT_S: Final = 120
_LONGEST_MS: Final = 2**31 - 1
"""The longest timer of the original; a month is as good as for ever."""


def bash_timeout_ms(input_: Mapping[str, JsonValue]) -> float:
    """The command's time limit in milliseconds, at least 1."""
    seconds = to_number(input_["timeout"]) if given(input_, "timeout") else DEFAULT_TIMEOUT_S
    if math.isnan(seconds):
        return 1
    return min(max(seconds * 1000, 1), _LONGEST_MS)


async def bash(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Runs `command` for at most `timeout` seconds; any exit code completes."""
    command = text_of(input_, "command")
    result = await handle.exec(command, bash_timeout_ms(input_), signal)
    stdout, stdout_cut = cut_middle(_with_dropped(result.stdout, result.stdout_dropped))
    stderr, stderr_cut = cut_middle(_with_dropped(result.stderr, result.stderr_dropped))
    output: dict[str, JsonValue] = {"exitCode": result.exit_code, "stdout": stdout, "stderr": stderr}
    if stdout_cut or stderr_cut:
        output["truncated"] = True
    if result.timed_out:
        output["timedOut"] = True
        seconds = to_string(input_["timeout"]) if given(input_, "timeout") else str(DEFAULT_TIMEOUT_S)
        output["stderr"] = _with_line(stderr, f"Command timed out after {seconds}s and was killed.")
    elif result.note is not None:
        output["stderr"] = _with_line(stderr, result.note)
    report: dict[str, JsonValue] = {
        "command": command,
        "exitCode": result.exit_code,
        "killed": result.killed,
    }
    return ToolResult(completed(output), report)


def _with_line(text: str, line: str) -> str:
    return f"{text}\n{line}" if text and not text.endswith("\n") else text + line


def _with_dropped(text: str, dropped: int) -> str:
    return f"{text}\n{ELLIPSIS} [{dropped} bytes dropped]" if dropped else text
