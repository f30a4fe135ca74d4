"""What a segment is started with: a message, an answer, or the word to go on (agent-engine 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.engine.agent.state_shapes import APPROVE, RESPOND, message_event
from gateway.engine.contract import EngineRefused
from gateway.engine.shapes import ShapeError, any_json, closed, name, tagged, text
from protocol.jsjson import JsonValue


@dataclass(frozen=True, slots=True)
class Message:
    """A user message or an interrupt; `event` is what the transcript keeps."""

    event: dict[str, Any]

    @property
    def user_text(self) -> str | None:
        """The text of a user message; None for one of parts, and for an interrupt."""
        return self.event.get("text") if self.event["kind"] == "user-message" else None


@dataclass(frozen=True, slots=True)
class Approve:
    """An answer to a request for approval."""

    event: dict[str, Any]
    interaction_id: str
    approved: bool


@dataclass(frozen=True, slots=True)
class Respond:
    """An answer to a question."""

    event: dict[str, Any]
    interaction_id: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on after a rollover."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The outcome of a deferred call."""

    invocation_id: str
    outcome: dict[str, Any]


Event: TypeAlias = Message | Approve | Respond | Continue | Settle

_CONTINUE: Final = closed({"kind": text})
_SETTLE: Final = closed(
    {
        "kind": text,
        "invocationId": name,
        "outcome": tagged(
            "kind",
            {
                "completed": closed({"kind": text, "output": any_json}),
                "denied": closed({"kind": text, "reason": text}),
                "failed": closed({"kind": text, "code": text, "message": text}),
            },
        ),
    }
)


def read_input(input_: Any) -> Event:
    """The event of a checkpoint's input. Raises EngineRefused `execution.invalid-input`."""
    if isinstance(input_, str):
        return Message({"kind": "user-message", "text": input_})
    try:
        return _read(input_)
    except ShapeError as error:
        raise EngineRefused("execution.invalid-input", f"Invalid input: {error}") from None


def _read(input_: Any) -> Event:
    if not isinstance(input_, dict):
        raise ShapeError("expected a text or an object")
    if "kind" not in input_:
        event = {"kind": "user-message", **input_}
        message_event(event, "message")
        return Message(event)
    kind = input_["kind"]
    if kind in ("user-message", "interrupt"):
        message_event(input_, "message")
        return Message(input_)
    if kind == "approve":
        APPROVE(input_, "approval")
        return Approve(input_, input_["interactionId"], input_["approved"])
    if kind == "respond":
        RESPOND(input_, "response")
        return Respond(input_, input_["interactionId"], input_["value"])
    if kind == "continue":
        _CONTINUE(input_, "continuation")
        return Continue()
    if kind == "settle":
        _SETTLE(input_, "settlement")
        return Settle(input_["invocationId"], input_["outcome"])
    raise ShapeError("unknown kind")
