"""`write`: a whole file (sandbox-manager 9.5)."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Handle
from services.sandbox_manager.javascript import text_of, trim
from services.sandbox_manager.outcomes import WRITE_FAILED, ToolResult, completed, failed
from services.sandbox_manager.paths import dirname, resolve
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import encode


async def write(handle: Handle, input_: Mapping[str, JsonValue], signal: Signal) -> ToolResult:
    """Makes the folders above `path` and overwrites the file with `content`."""
    path = resolve(text_of(input_, "path"), handle.workspace)
    data = encode(text_of(input_, "content"))
    complaint = await handle.make_folders(dirname(path), signal)
    if complaint is not None:
        message = trim(complaint) or f"The folder of {path} could not be made."
        return ToolResult(failed(WRITE_FAILED, message), {"path": path})
    await handle.write(path, data)
    return ToolResult(completed({"path": path, "bytes": len(data)}), {"path": path})
