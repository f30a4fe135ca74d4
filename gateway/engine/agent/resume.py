"""Going on with a paused turn (agent-engine 16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.engine.agent.input import Approve, Event, Respond, Settle
from gateway.engine.agent.outcomes import settled_outcome
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.agent.state import AgentState
from gateway.engine.agent.texts import APPROVAL_REJECTED
from gateway.engine.contract import ABSENT, EngineRefused
from protocol.json_schema import Schema


def resume(
    state: AgentState, event: Event, output_schema_of: Callable[[Mapping[str, Any]], Schema | None]
) -> None:
    """Applies an answer or a settlement to the plan of a paused state; the answer enters the transcript.

    Raises EngineRefused `execution.invalid-input` when it answers nothing that is open, before any change.
    """
    plan = state.plan
    assert plan is not None
    if isinstance(event, Approve | Respond):
        call = _asking(plan, event.interaction_id)
        resumed = _answer(call, event)
        if resumed is None:
            call.settle({"kind": "denied", "reason": APPROVAL_REJECTED})
        else:
            call.status = "pending"
            call.interaction = None
            call.interaction_phase = None
            call.resume = resumed
        state.transcript.append({"kind": "input", "turnId": plan.turn_id, "event": event.event})
    elif isinstance(event, Settle):
        call = _deferred(plan, event.invocation_id)
        call.settle(settled_outcome(event.outcome, output_schema_of(call.reference)))
    else:
        raise _no_match()


def refuse_unless_message(event: Event) -> None:
    """For a state that isn't paused: an answer or a settlement finds nothing.

    Raises EngineRefused `execution.invalid-input`.
    """
    if isinstance(event, Approve | Respond | Settle):
        raise _refused("There is no matching paused operation for this input")


def _answer(call: PlanCall, event: Approve | Respond) -> dict[str, Any] | None:
    """What the tool is told, or None when it may not run."""
    assert call.interaction is not None
    expected = "approval" if isinstance(event, Approve) else "response"
    if call.interaction["kind"] != expected:
        raise _refused("Interaction response kind does not match the saved request")
    told: dict[str, Any] = {"interactionId": event.interaction_id, "kind": expected}
    if isinstance(event, Respond):
        told["value"] = event.value
    elif event.approved:
        told["approved"] = True
    else:
        return None
    if call.token is not ABSENT:
        told["token"] = call.token
    return told


def _asking(plan: Plan, interaction_id: str) -> PlanCall:
    for call in plan.calls:
        if call.status == "interaction" and call.interaction and call.interaction["id"] == interaction_id:
            return call
    raise _no_match()


def _deferred(plan: Plan, invocation_id: str) -> PlanCall:
    for call in plan.calls:
        if call.status == "deferred" and call.invocation_id == invocation_id:
            return call
    raise _no_match()


def _no_match() -> EngineRefused:
    return _refused("Input does not match a pending approval, response, or deferred invocation")


def _refused(message: str) -> EngineRefused:
    return EngineRefused("execution.invalid-input", message)
