"""From a tool's result to the outcome of its effect, profile l17 (mcp-pool 8.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocol.jsjson import JsonValue

NO_ERROR_TEXT: Final = "The MCP tool failed and gave no text."


def outcome_of(result: Mapping[str, Any]) -> JsonValue:
    """The outcome document of a checked `tools/call` result (see results.check_call_result)."""
    texts = [part["text"] for part in result["content"] if part["type"] == "text"]
    if result.get("isError"):
        return {"kind": "failed", "code": "mcp.tool", "message": "\n".join(texts) or NO_ERROR_TEXT}
    output: JsonValue
    if "structuredContent" in result:
        output = result["structuredContent"]
    elif texts:
        output = "\n".join(texts)
    else:
        output = result["content"]
    return {"kind": "completed", "output": output}
