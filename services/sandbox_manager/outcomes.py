"""Outcome documents and their codes (sandbox-manager 8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.jsjson import JsonValue

UNAVAILABLE: Final = "sandbox.unavailable"
START_FAILED: Final = "sandbox.start_failed"
ERROR: Final = "sandbox.error"
NOT_FOUND: Final = "sandbox.not_found"
WRITE_FAILED: Final = "sandbox.write_failed"
EDIT_NOOP: Final = "sandbox.edit_noop"
EDIT_NO_MATCH: Final = "sandbox.edit_no_match"
EDIT_NOT_UNIQUE: Final = "sandbox.edit_not_unique"
GREP_FAILED: Final = "sandbox.grep_failed"
TOO_LARGE: Final = "artifact.too_large"

Outcome = dict[str, JsonValue]


def completed(output: JsonValue) -> Outcome:
    """The outcome of a tool that did its work."""
    return {"kind": "completed", "output": output}


def failed(code: str, message: str) -> Outcome:
    """The outcome of one that could not."""
    return {"kind": "failed", "code": code, "message": message}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """An outcome, and what `sandbox.exec` tells about the call beside it."""

    outcome: Outcome
    report: dict[str, JsonValue] = field(default_factory=dict)
