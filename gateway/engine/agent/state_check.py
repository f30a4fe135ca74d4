"""Whether a saved state can be continued (agent-engine 4.2, 6.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.engine.agent.state_shapes import STATE
from gateway.engine.agent.transcript import Transcript
from gateway.engine.contract import EngineRefused
from gateway.engine.shapes import ShapeError
from protocol.transcript import Entry

_INTERRUPTED = (
    "Execution was interrupted with possibly active effects. Reconcile it before starting another run; "
    "automatic replay is not supported."
)


def check_state(document: Any, entries: Sequence[Entry]) -> Transcript:
    """Check 6: the whole state, once; its transcript, where it was not checked before.

    Raises EngineRefused `execution.invalid-state`.
    """
    try:
        STATE(document, "state")
        _check_relations(document)
        return Transcript(entries)
    except ShapeError as error:
        raise EngineRefused("execution.invalid-state", f"Invalid state: {error}") from None


def check_combination(state: Mapping[str, Any], input_: Any) -> None:
    """Check 8: the state and the input fit together. Raises EngineRefused `execution.invalid-state`."""
    plan = state.get("plan")
    active = state["status"] == "active"
    if plan is not None:
        active = active or any(call["status"] == "active" for call in plan["calls"])
    if active:
        kind = input_.get("kind") if isinstance(input_, dict) else None
        if kind not in ("continue", "settle", "approve", "respond"):
            raise EngineRefused("execution.invalid-state", _INTERRUPTED)
    elif plan is not None and state["status"] != "paused":
        raise EngineRefused("execution.invalid-state", "Invalid state: a plan is left, but nothing is paused")


def _check_relations(state: Mapping[str, Any]) -> None:
    plan = state.get("plan")
    if plan is None:
        if state["status"] == "paused":
            raise ShapeError("a paused state needs a plan")
        return
    turn = state.get("turn")
    if turn is not None and turn["turnId"] != plan["turnId"]:
        raise ShapeError("state.turn and state.plan are of two turns")
    _check_order(plan)
    calls = plan["calls"]
    _unique([call["invocationId"] for call in calls], "invocation id")
    _unique([call["interaction"]["id"] for call in calls if "interaction" in call], "interaction id")
    for call in calls:
        _check_call(call)
    if state["status"] == "paused":
        statuses = {call["status"] for call in calls}
        if "active" in statuses or not statuses & {"interaction", "deferred"}:
            raise ShapeError("a paused plan must wait for something and run nothing")


def _check_order(plan: Mapping[str, Any]) -> None:
    order = plan["order"]
    _unique([place["callId"] for place in order], "call id in the order")
    tools = {place["callId"]: place["toolName"] for place in order}
    members = [*plan["immediate"], *plan["calls"]]
    if len(order) != len(members):
        raise ShapeError("the plan's order does not have every call once")
    _unique([member["callId"] for member in members], "call id")
    for member in members:
        if tools.get(member["callId"]) != member["toolName"]:
            raise ShapeError(f"call '{member['callId']}' is not in the plan's order")


def _check_call(call: Mapping[str, Any]) -> None:
    reference = call["reference"]
    if not reference["toolName"] == reference["descriptor"]["name"] == call["toolName"]:
        raise ShapeError(f"call '{call['callId']}' refers to another tool")
    result = call.get("result")
    if (result is not None) != (call["status"] == "settled"):
        raise ShapeError(f"call '{call['callId']}' must have a result exactly when it is settled")
    if result is not None and (result["callId"], result["toolName"]) != (call["callId"], call["toolName"]):
        raise ShapeError(f"call '{call['callId']}' has the result of another call")
    if call["status"] == "interaction" and not ("interaction" in call and "interactionPhase" in call):
        raise ShapeError(f"call '{call['callId']}' lacks its interaction")


def _unique(values: Sequence[str], what: str) -> None:
    if len(set(values)) != len(values):
        raise ShapeError(f"a {what} appears twice")
