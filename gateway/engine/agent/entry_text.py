"""What an entry counts for when the size of a conversation is estimated (agent-engine 17b, 19).

The same text, cut where it is long, is what a summary is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.engine.agent.texts import summary_message
from protocol.jsjson import dumps
from protocol.utf16 import utf16_length, utf16_truncate

UNITS_PER_TOKEN: Final = 4
"""UTF-16 code units that count as one token."""


def tokens_of_units(units: int) -> int:
    """Tokens that a text of so many UTF-16 code units counts for."""
    return -(-units // UNITS_PER_TOKEN)


def entry_tokens(entry: Mapping[str, Any]) -> int:
    """The tokens an entry counts for, its text not cut."""
    parts = entry_parts(entry)
    units = sum(map(utf16_length, parts)) + max(len(parts) - 1, 0)
    return tokens_of_units(units)


def entry_parts(entry: Mapping[str, Any], limit: int | None = None) -> list[str]:
    """The parts of an entry's text, which are joined by newlines. `limit`: where long values are cut."""
    kind = entry["kind"]
    if kind == "input":
        return _event_parts(entry["event"], limit)
    if kind == "candidate":
        return _candidate_parts(entry["candidate"], limit)
    if kind == "tool-results":
        return [_result_part(result, limit) for result in entry["results"]]
    if kind == "compaction":
        return [summary_message(entry["summary"])]
    return []


def clip(value: Any, limit: int | None) -> str:
    """A string, or the JSON of another value; beyond `limit` code units cut, and the cut said."""
    shown = value if isinstance(value, str) else dumps(value)
    if limit is None:
        return shown
    excess = utf16_length(shown) - limit
    return shown if excess <= 0 else f"{utf16_truncate(shown, limit)}… [{excess} more characters]"


def _event_parts(event: Mapping[str, Any], limit: int | None) -> list[str]:
    kind = event["kind"]
    if kind == "approve":
        return [f"[User {'approved' if event['approved'] else 'denied'} a request]"]
    if kind == "respond":
        return [f"[User answered]: {clip(event['value'], limit)}"]
    if "content" not in event:
        return [f"[User]: {event['text']}"]
    parts = (
        part["text"] if part["type"] == "text" else f"[{part['mediaType']}]" for part in event["content"]
    )
    return [f"[User]: {' '.join(parts)}"]


def _candidate_parts(candidate: Mapping[str, Any], limit: int | None) -> list[str]:
    parts: list[str] = []
    for block in candidate["output"]:
        kind = block["type"]
        if kind == "text" and block["text"]:
            parts.append(f"[Assistant]: {block['text']}")
        elif kind == "json":
            parts.append(f"[Assistant]: {clip(block['value'], limit)}")
        elif kind == "tool-call":
            parts.append(f"[Assistant called {block['name']}]: {clip(block['args'], limit)}")
    return parts


def _result_part(result: Mapping[str, Any], limit: int | None) -> str:
    tool, kind = result["toolName"], result["kind"]
    if kind == "completed":
        return f"[Tool {tool} result]: {clip(result['output'], limit)}"
    if kind == "denied":
        return f"[Tool {tool} denied]: {result['reason']}"
    return f"[Tool {tool} failed]: {result['message']}"
