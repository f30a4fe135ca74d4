"""The shapes of a saved state's documents (agent-engine 5, 6.1, 12). All objects are closed."""

from __future__ import annotations

from typing import Any, Final

from gateway.engine.agent.candidate import check_candidate
from gateway.engine.failures import EngineFailure
from gateway.engine.shapes import (
    ShapeError,
    any_json,
    array,
    closed,
    flag,
    key_or_index,
    mapping,
    name,
    one_of,
    tagged,
    text,
    values,
    whole,
)

# Events (section 5)

PART: Final = tagged(
    "type",
    {
        "text": closed({"type": text, "text": text}),
        "media": closed({"type": text, "mediaType": name, "reference": any_json}),
    },
)


_TEXT_MESSAGE: Final = closed({"kind": text, "text": text}, {"metadata": mapping})
_CONTENT_MESSAGE: Final = closed({"kind": text, "content": array(PART)}, {"metadata": mapping})


def message_event(value: Any, where: str) -> None:
    """A user message or an interrupt: text or parts, never both."""
    shape = _CONTENT_MESSAGE if isinstance(value, dict) and "content" in value else _TEXT_MESSAGE
    shape(value, where)


APPROVE: Final = closed({"kind": text, "interactionId": name, "approved": flag})
RESPOND: Final = closed({"kind": text, "interactionId": name, "value": any_json})

EVENT: Final = tagged(
    "kind",
    {"user-message": message_event, "interrupt": message_event, "approve": APPROVE, "respond": RESPOND},
)

# Tool results and the transcript (section 12)

_ISSUE: Final = closed({"path": array(key_or_index), "code": text, "message": text})
_DETAILS: Final = closed({"phase": one_of("input", "output"), "issues": array(_ISSUE)})
_OF_CALL: Final = {"callId": name, "toolName": name, "kind": text}

TOOL_RESULT: Final = tagged(
    "kind",
    {
        "completed": closed({**_OF_CALL, "output": any_json}),
        "denied": closed({**_OF_CALL, "reason": text}),
        "failed": closed({**_OF_CALL, "code": text, "message": text}, {"details": _DETAILS}),
    },
)

_CANDIDATE_MEMBERS: Final = closed(
    {"output": any_json}, {"finishReason": any_json, "usage": any_json, "evidence": any_json}
)


def stored_candidate(value: Any, where: str) -> None:
    """A candidate as it is stored: the rules of section 10, and every call has an id and a name."""
    _CANDIDATE_MEMBERS(value, where)
    try:
        check_candidate(value)
    except EngineFailure as failure:
        raise ShapeError(f"{where}: {failure.message}") from None
    for index, block in enumerate(value["output"]):
        if block["type"] == "tool-call":
            name(block.get("id"), f"{where}.output[{index}].id")
            name(block.get("name"), f"{where}.output[{index}].name")


_OF_STEP: Final = {"kind": text, "turnId": name, "stepId": name}

ENTRY: Final = tagged(
    "kind",
    {
        "input": closed({"kind": text, "turnId": name, "event": EVENT}),
        "candidate": closed({**_OF_STEP, "candidate": stored_candidate}),
        "tool-results": closed({**_OF_STEP, "results": array(TOOL_RESULT)}),
        "final": closed({**_OF_STEP, "output": any_json}),
        "compaction": closed(
            {
                **_OF_STEP,
                "summary": text,
                "trigger": one_of("threshold", "overflow"),
                "tokensBefore": whole(0),
                "tokensAfter": whole(0),
            }
        ),
    },
)

# Plans (section 6.1)

_DESCRIPTOR: Final = closed(
    {"name": name, "inputSchema": mapping}, {"description": text, "outputSchema": mapping}
)
_REFERENCE: Final = closed({"capabilityId": name, "toolName": name, "descriptor": _DESCRIPTOR})
_INTERACTION: Final = closed(
    {"id": name, "kind": one_of("approval", "response"), "prompt": text}, {"metadata": any_json}
)
_RESUME: Final = tagged(
    "kind",
    {
        "approval": closed({"kind": text, "interactionId": name, "approved": flag}, {"token": any_json}),
        "response": closed({"kind": text, "interactionId": name, "value": any_json}, {"token": any_json}),
    },
)
_WAIT: Final = closed({"kind": one_of("ask", "approve", "sleep", "waitFor"), "waitId": name}, {"name": text})

CALL: Final = closed(
    {
        "callId": name,
        "invocationId": name,
        "toolName": name,
        "args": any_json,
        "rawArgs": any_json,
        "reference": _REFERENCE,
        "status": one_of("pending", "active", "settled", "interaction", "deferred"),
    },
    {
        "result": TOOL_RESULT,
        "interaction": _INTERACTION,
        "interactionPhase": one_of("before", "execute"),
        "resume": _RESUME,
        "token": any_json,
        "wait": _WAIT,
    },
)

PLAN: Final = closed(
    {
        "turnId": name,
        "stepId": name,
        "stepNumber": whole(1),
        "order": array(closed({"callId": name, "toolName": name})),
        "immediate": array(TOOL_RESULT),
        "calls": array(CALL),
    }
)

# The state (section 6.1)

_PATCH: Final = closed({}, {"capabilities": values(flag), "tools": values(flag), "instructions": array(text)})
_TURN: Final = closed(
    {"turnId": name, "attempts": closed({"afterStep": whole(0), "afterTurn": whole(0)})},
    {"input": text, "patch": _PATCH},
)

STATE: Final = closed(
    {
        "version": one_of(1),
        "agentId": name,
        "executionId": name,
        "revision": whole(0),
        "turnCount": whole(0),
        "transcript": array(any_json),
        "status": one_of("ready", "active", "completed", "paused", "cancelled", "failed"),
    },
    {
        "manifestHash": name,
        "outputContract": mapping,
        "state": mapping,
        "plan": PLAN,
        "turn": _TURN,
        "cancelledCalls": array(CALL),
    },
)
