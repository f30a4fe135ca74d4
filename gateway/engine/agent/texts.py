"""Texts that reach prompts, and so request hashes: they are exact (agent-engine 19)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.utf16 import utf16_sort_key

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

CHILD_WITHOUT_ANSWER: Final = "The agent finished without an answer."
CHILD_CANCELLED: Final = "The agent was cancelled."
CHILD_MAY_NOT_ASK: Final = (
    "Agents used as tools can't ask for input, approval or a wait yet; do this work on the parent agent."
)

HOOK_TEXT_WITH_SCHEMA: Final = (
    'after("turn") must return output, not text, for an agent with an output schema'
)
HOOK_OUTPUT_WITHOUT_SCHEMA: Final = (
    'after("turn") must return text, not output, for an agent without an output schema'
)
HOOK_AGENT_LEVEL_ACTIVE: Final = "Agent-level before hooks must use capabilities{}, not active"

EMPTY_SUMMARY: Final = "Compacting the conversation failed: the model returned an empty summary."

_SUMMARY_INTRODUCTION: Final = "Earlier parts of this conversation were summarized to fit the context window."


def unknown_tool(name: str) -> str:
    """A call of a tool that the model can't see."""
    return f"Unknown Tool '{name}'"


def duplicate_call_id(call_id: str) -> str:
    """A call whose id another call of the candidate has too."""
    return f"Duplicate Tool call id '{call_id}'"


def duplicate_tools(names: Iterable[str]) -> str:
    """Visible tools that share names."""
    return "Duplicate Tool '" + "', '".join(sorted(names, key=utf16_sort_key)) + "'"


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


def child_failed(reason: str) -> str:
    """An agent used as a tool that failed."""
    return f"The agent failed ({reason})."


def partial_output(text: str) -> str:
    """What a failed agent had said, behind the message that it failed."""
    return f"\nPartial output (evidence, not an answer):\n{text}"


def hook(capability: str, complaint: str) -> str:
    """What is wrong with the result of a capability's hook."""
    return f"Capability '{capability}' hook {complaint}"


def hook_toggles_other(capability: str, other: str) -> str:
    """A capability that toggles another one."""
    return hook(capability, f"may only toggle itself, not '{other}'")


def hook_unknown_capability(capability: str) -> str:
    """A toggle of a capability that is not there."""
    return f"Hook referenced unknown capability '{capability}'"


def hook_unknown_tool(tool: str) -> str:
    """A toggle of a tool that is not there."""
    return f"Hook referenced unknown tool '{tool}'"


def replacement_invalid(issues: str) -> str:
    """An answer of an after-turn hook that the output schema refuses."""
    return f'after("turn") output failed validation: {issues}'


def compaction_failed(reason: str) -> str:
    """A summary call that the model failed."""
    return f"Compacting the conversation failed: {reason}"


SUMMARY_SYSTEM: Final = (
    "You summarize a conversation between a user and an AI agent that uses tools, so the agent can continue "
    "the work with a shorter context. Write for the agent, not the user. Keep facts exactly: names, "
    "identifiers, paths, numbers, decisions and open problems. Do not invent anything and do not continue "
    "the task yourself."
)

_SUMMARY_FORMAT: Final = (
    "Write the summary with these sections, leaving out a section that has nothing:\n"
    "## Goal\n"
    "## Constraints and preferences\n"
    "## Progress\n"
    "## Key decisions\n"
    "## Next steps\n"
    "## Critical context\n"
    "If a previous summary is given, merge it with the new conversation into one summary."
)


def summary_request(previous: str | None, entries: Iterable[str]) -> str:
    """What a summary is asked with: the last summary, if there is one, and the texts of the entries."""
    before = "" if previous is None else f"<previous-summary>\n{previous}\n</previous-summary>\n\n"
    conversation = "\n\n".join(text for text in entries if text)
    return f"{before}<conversation>\n{conversation}\n</conversation>\n\n{_SUMMARY_FORMAT}"
