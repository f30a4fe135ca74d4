"""`edit`: replaces a text in a file (sandbox-manager 9.6)."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Handle
from services.sandbox_manager.javascript import text_of
from services.sandbox_manager.outcomes import (
    EDIT_NO_MATCH,
    EDIT_NOOP,
    EDIT_NOT_UNIQUE,
    NOT_FOUND,
    Outcome,
    ToolResult,
    completed,
    failed,
)
from services.sandbox_manager.paths import resolve
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import encode


async def edit(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Replaces `old_string`, which must stand in the file once unless `replace_all` is true."""
    del signal
    path = resolve(text_of(input_, "path"), handle.workspace)
    old, new = text_of(input_, "old_string"), text_of(input_, "new_string")
    text = await handle.read_text(path)
    if text is None:
        return ToolResult(failed(NOT_FOUND, f"There is no file {path}."), {"path": path})
    refusal = _refusal(text, old, new, path, input_.get("replace_all") is True)
    if refusal is not None:
        return ToolResult(refusal, {"path": path})
    count = text.count(old)
    await handle.write(path, encode(text.replace(old, new)))
    return ToolResult(completed({"path": path, "replacements": count}), {"path": path})


def _refusal(text: str, old: str, new: str, path: str, replace_all: bool) -> Outcome | None:
    if old == new:
        return failed(EDIT_NOOP, "old_string and new_string are the same; there is nothing to change.")
    count = text.count(old) if old else 0
    if count == 0:
        return failed(EDIT_NO_MATCH, f"old_string was not found in {path}.")
    if count > 1 and not replace_all:
        return failed(
            EDIT_NOT_UNIQUE,
            f"old_string was found {count} times in {path}; give more of the text around it, "
            "or set replace_all to true.",
        )
    return None
