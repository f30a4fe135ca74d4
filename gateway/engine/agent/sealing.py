"""From a candidate to what its step comes to: an answer, or a tool plan (agent-engine 14, 15.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.engine.agent import texts
from gateway.engine.agent.candidate import Candidate, CandidateCall
from gateway.engine.agent.context import Place
from gateway.engine.agent.definition import AgentDefinition, ToolList
from gateway.engine.agent.hook_results import StepDecision
from gateway.engine.agent.ids import IdScope
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.agent.validation import validate
from gateway.engine.failures import EngineFailure
from protocol.jsjson import JsonValue, stringify_number
from protocol.json_schema import Invalid, Issue, Schema


def final_output(candidate: Candidate, definition: AgentDefinition) -> JsonValue:
    """The output of a candidate without calls. Raises EngineFailure `output.invalid`."""
    if definition.output_schema is None:
        return candidate.text()
    blocks = candidate.document["output"]
    answers = [block["value"] for block in blocks if block["type"] == "json"]
    if len(answers) != 1 or any(block["type"] == "text" for block in blocks):
        raise EngineFailure("output.invalid", texts.NOT_ONE_JSON_BLOCK)
    checked = validate(definition.output_schema, answers[0])
    if isinstance(checked, Invalid):
        message = texts.structured_output_invalid(describe_issues(checked.issues))
        raise EngineFailure("output.invalid", message)
    output: JsonValue = checked.value
    return output


def checked_output(output: JsonValue, schema: Schema) -> JsonValue:
    """An answer that a hook gave instead of the model's. Raises EngineFailure `output.invalid`."""
    checked = validate(schema, output)
    if isinstance(checked, Invalid):
        message = texts.replacement_invalid("; ".join(issue.message for issue in checked.issues))
        raise EngineFailure("output.invalid", message)
    value: JsonValue = checked.value
    return value


def seal_plan(
    candidate: Candidate, tools: ToolList, ids: IdScope, place: Place, decision: StepDecision
) -> Plan:
    """The plan of a candidate's calls; those that can't run have their result at once."""
    plan = Plan(place.turn_id, place.step_id, place.number)
    for call in candidate.calls:
        plan.order.append({"callId": call.call_id, "toolName": call.tool_name})
        sealed = _seal(call, tools, ids, decision)
        if isinstance(sealed, PlanCall):
            plan.calls.append(sealed)
        else:
            plan.immediate.append(sealed)
    return plan


def _seal(
    call: CandidateCall, tools: ToolList, ids: IdScope, decision: StepDecision
) -> PlanCall | dict[str, Any]:
    if call.id_missing:
        return _failed(call, "tool.invalid-call-id", texts.CALL_ID_EMPTY)
    if call.duplicated_id is not None:
        return _failed(call, "tool.duplicate-call-id", texts.duplicate_call_id(call.duplicated_id))
    tool = tools.by_name.get(call.tool_name)
    if tool is None:
        return _failed(call, "tool.unknown", texts.unknown_tool(call.tool_name))
    checked = validate(tool.input_schema, call.args)
    if isinstance(checked, Invalid):
        result = _failed(call, "tool.invalid-arguments", describe_issues(checked.issues))
        return {**result, "details": issue_details("input", checked.issues)}
    denied = decision.deny.get(call.call_id) if decision.retry is None else decision.retry
    if denied is not None:
        return {"kind": "denied", "callId": call.call_id, "toolName": call.tool_name, "reason": denied}
    prompt = decision.approve.get(call.call_id)
    interaction = None
    if prompt is not None:
        interaction = {"kind": "approval", "prompt": prompt, "id": ids.new_id("interaction")}
    return PlanCall(
        status="pending" if interaction is None else "interaction",
        interaction=interaction,
        interaction_phase=None if interaction is None else "before",
        call_id=call.call_id,
        invocation_id=ids.new_id("invocation"),
        tool_name=call.tool_name,
        args=checked.value,
        raw_args=call.args,
        reference=tool.reference,
    )


def _failed(call: CandidateCall, code: str, message: str) -> dict[str, Any]:
    return {
        "kind": "failed",
        "callId": call.call_id,
        "toolName": call.tool_name,
        "code": code,
        "message": message,
    }


def describe_issues(issues: Iterable[Issue]) -> str:
    """Issues in one line, each with its place."""
    return "; ".join(f"{_place(issue)}: {issue.message}" for issue in issues)


def _place(issue: Issue) -> str:
    steps = (step if isinstance(step, str) else stringify_number(step) for step in issue.path)
    return ".".join(steps) or "(root)"


def issue_details(phase: str, issues: Iterable[Issue]) -> dict[str, Any]:
    """The details of a result that a schema refused; the order of members reaches prompts."""
    return {
        "phase": phase,
        "issues": [
            {"path": list(issue.path), "code": issue.code, "message": issue.message} for issue in issues
        ],
    }
