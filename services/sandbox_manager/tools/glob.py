"""`glob`: files by the form of their names (sandbox-manager 9.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from protocol.jsjson import JsonValue
from protocol.utf16 import utf16_sort_key
from services.sandbox_manager.contract import BackendError, Handle
from services.sandbox_manager.glob_pattern import GlobPatternTooWide, compile_glob
from services.sandbox_manager.javascript import given, text_of, to_string
from services.sandbox_manager.outcomes import ToolResult, completed
from services.sandbox_manager.paths import resolve
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import ELLIPSIS, quote

FILES_SEARCHED: Final = 20_000
FILES_SHOWN: Final = 500
TIMEOUT_MS: Final = 60_000


async def glob(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Shows at most 500 files below `path` whose names fit `pattern`."""
    pattern = text_of(input_, "pattern")
    given_root = to_string(input_["path"]) if given(input_, "path") else handle.workspace
    root = resolve(given_root, handle.workspace)
    command = f"find {quote(root)} -type f -not -path '*/.git/*' 2>/dev/null | head -n {FILES_SEARCHED}"
    report: dict[str, JsonValue] = {"command": command}
    try:
        fits = compile_glob(pattern)
    except GlobPatternTooWide as error:
        raise BackendError(str(error)) from None
    output = await handle.find(root, command, TIMEOUT_MS, signal)
    files = _select(output.lines, root, "/" not in pattern, fits)
    if not files:
        return ToolResult(completed("No files matched."), report)
    files.sort(key=utf16_sort_key)
    shown = "\n".join(files[:FILES_SHOWN])
    if len(files) > FILES_SHOWN:
        shown += f"\n{ELLIPSIS} more files omitted; narrow the pattern."
    return ToolResult(completed(shown), report)


def _select(paths: Sequence[str], root: str, by_base_name: bool, fits: Callable[[str], bool]) -> list[str]:
    found: list[str] = []
    start = len(root.rstrip("/")) + 1
    for path in paths:
        if not path:
            continue
        name = path.rpartition("/")[2] if by_base_name else path[start:]
        if fits(name):
            found.append(path)
            if len(found) > FILES_SHOWN:
                break
    return found
