"""The six tools over a workspace's handle (sandbox-manager 9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Handle
from services.sandbox_manager.javascript import members
from services.sandbox_manager.outcomes import ToolResult
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.tools.bash import bash, bash_timeout_ms
from services.sandbox_manager.tools.edit import edit
from services.sandbox_manager.tools.glob import glob
from services.sandbox_manager.tools.grep import grep
from services.sandbox_manager.tools.read import read
from services.sandbox_manager.tools.write import write

HELPER_TIMEOUT_MS: Final = 60_000
"""For mkdir, grep and find, and for what reads files."""

_Tool = Callable[[Handle, Mapping[str, JsonValue], Signal], Awaitable[ToolResult]]

TOOLS: Final[Mapping[str, _Tool]] = {
    "bash": bash,
    "read": read,
    "write": write,
    "edit": edit,
    "grep": grep,
    "glob": glob,
}

READ_TOOLS: Final = frozenset({"read", "grep", "glob"})
"""Tools that change nothing: a fault of theirs is an outcome, never an uncertain effect."""


async def run_tool(handle: Handle, tool: str, input_: JsonValue, signal: Signal) -> ToolResult:
    """Runs one of TOOLS. Raises BackendError; input that isn't an object counts as {}."""
    return await TOOLS[tool](handle, members(input_), signal)


def tool_limit_ms(tool: str, input_: JsonValue) -> float:
    """How long a tool may take at most, in milliseconds."""
    return bash_timeout_ms(members(input_)) if tool == "bash" else HELPER_TIMEOUT_MS
