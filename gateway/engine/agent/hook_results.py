"""What the capabilities' hooks answered, merged to one patch or decision (agent-engine 13).

All mergers go over the results in manifest order, so later ones win. What the specification leaves open is
read strictly: a member of the wrong type fails the point rather than being passed over, because a denial
that nobody understands must not let a call through. Members that are null or false where a text is expected
count as absent after a step or turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.engine.agent import texts
from gateway.engine.agent.definition import AgentDefinition
from gateway.engine.contract import ABSENT, Absent
from gateway.engine.failures import EngineFailure
from protocol.jsjson import JsonValue

AGENT_LEVEL = "agent"
"""The id of the capability that speaks for the whole agent."""

Results: TypeAlias = Sequence[tuple[str, Mapping[str, Any]]]

Patch: TypeAlias = Mapping[str, Any]
"""What before hooks change for a turn or step: {capabilities?, tools?, instructions?}, as it is saved."""


def results_of(value: JsonValue | Absent, registrants: Sequence[str]) -> Results:
    """Each registrant's result, in their order. Raises EngineFailure for one that is not an object."""
    given = value.get("results") if isinstance(value, dict) else None
    results = given if isinstance(given, dict) else {}
    found: list[tuple[str, Mapping[str, Any]]] = []
    for capability in registrants:
        result = results.get(capability)
        if result is None:
            result = {}
        if not isinstance(result, dict):
            raise _invalid(texts.hook(capability, "must return an object"))
        found.append((capability, result))
    return found


# Before a turn or step


@dataclass(frozen=True, slots=True)
class Before:
    """What the hooks before a turn or step came to."""

    patch: Patch = field(default_factory=dict)
    block: str | None = None


def merge_before(
    results: Results, definition: AgentDefinition, remember: Callable[[Mapping[str, Any]], None]
) -> Before:
    """Merges patches; `remember` takes what goes into the session memory. Raises EngineFailure."""
    capabilities: dict[str, bool] = {}
    tools: dict[str, bool] = {}
    instructions: list[str] = []
    block: str | None = None
    for capability, result in results:
        own = _own_patch(capability, result, definition)
        capabilities.update(own.get("capabilities", {}))
        tools.update(own.get("tools", {}))
        instructions.extend(own.get("instructions", ()))
        block = result.get("block", block)
        state = result.get("state")
        if isinstance(state, dict):
            remember(state)
    for name in capabilities:
        if name not in definition.capability_ids:
            raise _invalid(texts.hook_unknown_capability(name))
    for name in tools:
        if name not in definition.tools.by_name:
            raise _invalid(texts.hook_unknown_tool(name))
    patch = {"capabilities": capabilities, "tools": tools, "instructions": instructions}
    return Before({name: value for name, value in patch.items() if value}, block)


def _own_patch(capability: str, result: Mapping[str, Any], definition: AgentDefinition) -> Patch:
    """One capability's patch, with `active` as a toggle of itself."""
    instructions = result.get("instructions", [])
    if not isinstance(instructions, list) or not all(isinstance(text, str) for text in instructions):
        raise _invalid(texts.hook(capability, "instructions must be strings"))
    if not isinstance(result.get("block", ""), str):
        raise _invalid(texts.hook(capability, "block must be a string"))
    capabilities = _toggles(capability, result.get("capabilities", {}))
    tools = _toggles(capability, result.get("tools", {}))
    if "active" in result:
        if capability == AGENT_LEVEL:
            raise _invalid(texts.HOOK_AGENT_LEVEL_ACTIVE)
        capabilities |= _toggles(capability, {capability: result["active"]})
    if capability != AGENT_LEVEL:
        _check_own(capability, capabilities, tools, definition)
    return {"capabilities": capabilities, "tools": tools, "instructions": instructions}


def _toggles(capability: str, toggles: Any) -> dict[str, bool]:
    if not isinstance(toggles, dict) or not all(isinstance(on, bool) for on in toggles.values()):
        raise _invalid(texts.hook(capability, "toggles must be booleans"))
    return dict(toggles)


def _check_own(
    capability: str, capabilities: Mapping[str, bool], tools: Mapping[str, bool], definition: AgentDefinition
) -> None:
    for name in capabilities:
        if name != capability:
            raise _invalid(texts.hook_toggles_other(capability, name))
    for name in tools:
        if name in definition.tools.by_name and (capability, name) not in definition.tools.by_place:
            raise _invalid(texts.hook(capability, "may only toggle its own tools"))


def layer(turn: Patch, step: Patch) -> Patch:
    """A turn's patch with a step's over it: the step's toggles win, the turn's instructions come first."""
    return {
        "capabilities": {**turn.get("capabilities", {}), **step.get("capabilities", {})},
        "tools": {**turn.get("tools", {}), **step.get("tools", {})},
        "instructions": [*turn.get("instructions", ()), *step.get("instructions", ())],
    }


# After a step


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What the hooks after a step came to; `deny` and `approve` are by call id."""

    text: str | None = None
    deny: Mapping[str, str] = field(default_factory=dict)
    approve: Mapping[str, str] = field(default_factory=dict)
    retry: str | None = None
    block: str | None = None


def merge_step_decisions(results: Results) -> StepDecision:
    """Merges decisions: a block beats a retry, and a retry everything else. Raises EngineFailure."""
    block, retry = _stop(results)
    if block is not None:
        return StepDecision(block=block)
    if retry is not None:
        return StepDecision(retry=retry)
    text: str | None = None
    deny: dict[str, str] = {}
    approve: dict[str, str] = {}
    for capability, result in results:
        text = _text(capability, result, "text", text)
        deny |= _by_call(capability, result, "deny", "reason")
        approve |= _by_call(capability, result, "approve", "prompt")
    return StepDecision(text=text, deny=deny, approve=approve)


def _by_call(capability: str, result: Mapping[str, Any], member: str, says: str) -> dict[str, str]:
    listed = result.get(member)
    if listed is None:
        return {}
    found: dict[str, str] = {}
    for item in listed if isinstance(listed, list) else [listed]:
        call_id, text = (item.get("id"), item.get(says)) if isinstance(item, dict) else (None, None)
        if not isinstance(call_id, str) or not isinstance(text, str):
            raise _invalid(texts.hook(capability, f"{member} must list an id and a {says} for each call"))
        found[call_id] = text
    return found


# After a turn


@dataclass(frozen=True, slots=True)
class TurnDecision:
    """What the hooks after a turn came to; ABSENT and None say that nothing replaces the answer."""

    text: str | None = None
    output: JsonValue | Absent = ABSENT
    retry: str | None = None
    block: str | None = None


def merge_turn_decisions(results: Results) -> TurnDecision:
    """Merges decisions, in the order of `merge_step_decisions`. Raises EngineFailure."""
    block, retry = _stop(results)
    if block is not None:
        return TurnDecision(block=block)
    if retry is not None:
        return TurnDecision(retry=retry)
    text: str | None = None
    output: JsonValue | Absent = ABSENT
    for capability, result in results:
        text = _text(capability, result, "text", text)
        output = result.get("output", output)
    return TurnDecision(text=text, output=output)


def _stop(results: Results) -> tuple[str | None, str | None]:
    """The last block and the last retry; empty ones say nothing."""
    block: str | None = None
    retry: str | None = None
    for capability, result in results:
        block = _text(capability, result, "block", None) or block
        retry = _text(capability, result, "retry", None) or retry
    return block, retry


def _text(capability: str, result: Mapping[str, Any], member: str, otherwise: str | None) -> str | None:
    text = result.get(member)
    if text is None or text is False:
        return otherwise
    if not isinstance(text, str):
        raise _invalid(texts.hook(capability, f"{member} must be a string"))
    return text


def _invalid(message: str) -> EngineFailure:
    return EngineFailure("configuration.invalid", message)
