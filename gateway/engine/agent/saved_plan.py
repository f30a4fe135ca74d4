"""Whether a saved plan still means what it meant when it was made (agent-engine 4.2, checks 7 and 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.engine.agent.definition import AgentDefinition
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.agent.validation import NoVerdict, validate
from gateway.engine.contract import EngineRefused
from protocol.canonical import canonical_manifest
from protocol.json_schema import Invalid


def check_contract(contract: Mapping[str, Any] | None, definition: AgentDefinition) -> None:
    """Check 7: the state was made under the same output schema. Raises EngineRefused."""
    if not _same(contract, definition.output_contract):
        raise _incompatible("The state was made under another output schema")


def check_plan(plan: Plan, definition: AgentDefinition) -> None:
    """Check 9: every call's tool is unchanged and reads its arguments as before. Raises EngineRefused."""
    for call in plan.calls:
        _check_call(call, definition)


def _check_call(call: PlanCall, definition: AgentDefinition) -> None:
    tool = definition.tool_of(call.reference)
    if tool is None:
        raise _incompatible(f"Tool '{call.tool_name}' of a saved call is gone")
    if not _same(call.reference["descriptor"], tool.reference["descriptor"]):
        raise _incompatible(f"Tool '{call.tool_name}' of a saved call has changed")
    try:
        checked = validate(tool.input_schema, call.raw_args)
    except NoVerdict as failure:
        raise _incompatible(failure.message) from None
    if isinstance(checked, Invalid) or not _same(checked.value, call.args):
        raise _incompatible(f"The saved arguments of tool '{call.tool_name}' no longer fit")


def _same(one: Any, other: Any) -> bool:
    return canonical_manifest(one) == canonical_manifest(other)


def _incompatible(message: str) -> EngineRefused:
    return EngineRefused("execution.incompatible", message)
