"""The fixture route: a model without a model, for runs granted with `fixtureModel` (model-executor 9)."""

from __future__ import annotations

from typing import Final

from protocol.jsjson import JsonValue, dumps
from services.model_executor.call_view import CallView

TOOL: Final = "lookup_order"


def fixture_answer(call: CallView) -> str:
    """The candidate's JSON text: a pure function of the call. Raises CallInvalid for odd content."""
    last = call.prompt[-1] if call.prompt else None
    if last is not None and last.kind == "tool-result":
        parts = last.parts()
        texts = [
            text if text is not None else dumps(part) for part, text in zip(parts, last.texts(), strict=True)
        ]
        return _text("Order lookup complete: " + " ".join(texts))
    users = [item for item in call.prompt if item.kind == "message" and item.role == "user"]
    if len(users) > 1:
        return _text("I remember: " + " ".join(text or "" for text in users[0].texts()))
    if all(tool.name != TOOL for tool in call.tools):
        return _text("Hello from the fixture model.")
    return _candidate(
        {"type": "tool-call", "id": "fixture_lookup", "name": TOOL, "args": {"orderId": "demo-123"}}
    )


def _text(text: str) -> str:
    return _candidate({"type": "text", "text": text})


def _candidate(block: JsonValue) -> str:
    return dumps({"output": [block]})
