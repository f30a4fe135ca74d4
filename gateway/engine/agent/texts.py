"""Texts that reach prompts, and so request hashes: they are exact (agent-engine 19)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

APPROVAL_REJECTED: Final = "Approval rejected"
CALL_ID_EMPTY: Final = "Tool call id must not be empty"
INVOCATION_CANCELLED: Final = "Invocation cancelled; external effects are not automatically retried"
INVALID_INTERACTION: Final = "Tool returned an invalid interaction"
INVALID_DENIAL: Final = "Tool denial reason must be a string"
INVALID_RESULT: Final = "Expected a completed, failed, or denied tool result"
MISSING_OUTPUT: Final = "value.output cannot be undefined"
NOT_ONE_JSON_BLOCK: Final = (
    "Structured terminal output must contain exactly one JSON block and no text blocks"
)
INPUT_SCHEMA_NOT_OBJECT: Final = "Tool inputSchema JSON Schema root type must be object"

_SUMMARY_INTRODUCTION: Final = "Earlier parts of this conversation were summarized to fit the context window."


def unknown_tool(name: str) -> str:
    """A call of a tool that the model can't see."""
    return f"Unknown Tool '{name}'"


def duplicate_call_id(call_id: str) -> str:
    """A call whose id another call of the candidate has too."""
    return f"Duplicate Tool call id '{call_id}'"


def duplicate_tools(names: Iterable[str]) -> str:
    """Visible tools that share names."""
    return "Duplicate Tool '" + "', '".join(sorted(names)) + "'"


def structured_output_invalid(issues: str) -> str:
    """A structured answer that its schema refuses."""
    return f"Structured terminal output failed validation: {issues}"


def summary_message(summary: str) -> str:
    """What stands in a prompt for the entries that were compacted into this summary."""
    return f"{_SUMMARY_INTRODUCTION}\n<summary>\n{summary}\n</summary>"


def session_tool_unknown_capability(tool: str, capability: str) -> str:
    """A session tool that belongs to no capability."""
    return f"Session tool '{tool}' references unknown capability '{capability}'"


def session_tool_collides(tool: str) -> str:
    """A session tool that its capability declares already."""
    return f"Session tool '{tool}' collides with a declared tool"


def session_tool_duplicate(tool: str) -> str:
    """Two session tools of one agent with one name."""
    return f"Duplicate session tool '{tool}'"
