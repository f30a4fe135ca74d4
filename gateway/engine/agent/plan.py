"""A step's tool plan: the calls of one candidate until all have a result (agent-engine 6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.engine.contract import ABSENT, Absent
from protocol.jsjson import JsonValue

CallStatus = Literal["pending", "active", "settled", "interaction", "deferred"]


@dataclass(slots=True)
class PlanCall:
    """One executable call. Members are None, or ABSENT where null is a value, when they are not there."""

    call_id: str
    invocation_id: str
    tool_name: str
    args: JsonValue
    raw_args: JsonValue
    reference: Mapping[str, Any]
    status: CallStatus = "pending"
    result: dict[str, Any] | None = None
    interaction: dict[str, Any] | None = None
    interaction_phase: Literal["before", "execute"] | None = None
    resume: dict[str, Any] | None = None
    token: JsonValue | Absent = ABSENT
    wait: dict[str, Any] | None = None
    plain: bool = False
    """Whether the result may be written as plain JSON; not saved."""

    @classmethod
    def from_document(cls, call: Mapping[str, Any]) -> PlanCall:
        """The call of a valid document."""
        return cls(
            call_id=call["callId"],
            invocation_id=call["invocationId"],
            tool_name=call["toolName"],
            args=call["args"],
            raw_args=call["rawArgs"],
            reference=call["reference"],
            status=call["status"],
            result=call.get("result"),
            interaction=call.get("interaction"),
            interaction_phase=call.get("interactionPhase"),
            resume=call.get("resume"),
            token=call.get("token", ABSENT),
            wait=call.get("wait"),
        )

    def document(self) -> dict[str, Any]:
        """The call as it is saved."""
        call: dict[str, Any] = {
            "callId": self.call_id,
            "invocationId": self.invocation_id,
            "toolName": self.tool_name,
            "args": self.args,
            "rawArgs": self.raw_args,
            "reference": self.reference,
            "status": self.status,
        }
        optional = {
            "result": self.result,
            "interaction": self.interaction,
            "interactionPhase": self.interaction_phase,
            "resume": self.resume,
            "wait": self.wait,
        }
        call.update((key, value) for key, value in optional.items() if value is not None)
        if self.token is not ABSENT:
            call["token"] = self.token
        return call

    def asks_before(self) -> bool:
        """It waits for leave to run at all."""
        return self.status == "interaction" and self.interaction_phase == "before"

    def settle(self, outcome: Mapping[str, Any]) -> None:
        """Gives the call its result: `outcome` without the ids of the call."""
        self.status = "settled"
        self.interaction = None
        self.interaction_phase = None
        self.result = {"callId": self.call_id, "toolName": self.tool_name, **outcome}


@dataclass(slots=True)
class Plan:
    """The calls of one step: `immediate` results need no execution, `calls` do, `order` has all of them."""

    turn_id: str
    step_id: str
    step_number: int
    order: list[dict[str, str]] = field(default_factory=list)
    immediate: list[dict[str, Any]] = field(default_factory=list)
    calls: list[PlanCall] = field(default_factory=list)

    @classmethod
    def from_document(cls, plan: Mapping[str, Any]) -> Plan:
        """The plan of a valid document."""
        return cls(
            turn_id=plan["turnId"],
            step_id=plan["stepId"],
            step_number=plan["stepNumber"],
            order=plan["order"],
            immediate=plan["immediate"],
            calls=[PlanCall.from_document(call) for call in plan["calls"]],
        )

    def document(self) -> dict[str, Any]:
        """The plan as it is saved."""
        return {
            "turnId": self.turn_id,
            "stepId": self.step_id,
            "stepNumber": self.step_number,
            "order": self.order,
            "immediate": self.immediate,
            "calls": [call.document() for call in self.calls],
        }

    def waiting(self) -> list[PlanCall]:
        """The calls that wait for a person or a settlement."""
        return [call for call in self.calls if call.status in ("interaction", "deferred")]

    def results(self) -> list[dict[str, Any]]:
        """The results of all calls in order. Every call must be settled."""
        by_call = {result["callId"]: result for result in self.immediate}
        for call in self.calls:
            assert call.result is not None
            by_call[call.call_id] = call.result
        return [by_call[place["callId"]] for place in self.order]
