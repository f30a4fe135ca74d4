"""`read`: a page of a text file with line numbers (sandbox-manager 9.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Handle, LineRange
from services.sandbox_manager.javascript import given, number_text, text_of, to_number, to_slice_index
from services.sandbox_manager.outcomes import NOT_FOUND, ToolResult, completed, failed
from services.sandbox_manager.paths import resolve
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import ELLIPSIS, cut_line

DEFAULT_LINES: Final = 2_000


async def read(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Shows at most `limit` lines from line `offset` on."""
    del signal
    path = resolve(text_of(input_, "path"), handle.workspace)
    offset = to_number(input_["offset"]) if given(input_, "offset") else 1
    limit = to_number(input_["limit"]) if given(input_, "limit") else DEFAULT_LINES
    page = await _page(handle, path, offset - 1, offset - 1 + limit)
    if page is None:
        return ToolResult(failed(NOT_FOUND, f"There is no file {path}."), {"path": path})
    if page.total == 0:
        return ToolResult(completed(f"{path} is empty."), {"path": path})
    return ToolResult(completed(_numbered(page, offset)), {"path": path})


async def _page(handle: Handle, path: str, start: float, stop: float) -> LineRange | None:
    # The schema allows neither, but unchecked input may hold what only makes sense for the whole file.
    if not (math.isfinite(start) and math.isfinite(stop)) or start < 0 or stop < 0:
        whole = await handle.read_lines(path, 0, 0)
        if whole is None:
            return None
        start, stop = to_slice_index(start, whole.total), to_slice_index(stop, whole.total)
    return await handle.read_lines(path, int(start), int(stop))


def _numbered(page: LineRange, offset: float) -> str:
    count = len(page.lines)
    width = len(number_text(offset - 1 + count))
    shown = "\n".join(
        f"{number_text(offset + index).rjust(width)}\t{cut_line(line)}"
        for index, line in enumerate(page.lines)
    )
    left = page.total - (offset - 1 + count)
    if left > 0:
        again = number_text(offset + count)
        shown += f"\n{ELLIPSIS} {number_text(left)} more line(s); read again with offset {again}."
    return shown
