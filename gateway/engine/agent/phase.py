"""What a running agent is in the middle of, told from its state and what is in flight."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.engine.agent.compaction import SUMMARY_CALL
from gateway.engine.agent.origin import Origin
from gateway.engine.agent.state import AgentState
from gateway.engine.contract import AgentPhase


def phase_of(state: AgentState, origin: Origin, waiting: Sequence[str]) -> AgentPhase:
    """The phase of an agent. `waiting` are the effects in flight of the whole segment.

    Agents that are tools have effects in flight only while their parent runs its calls, so what is left
    then is the agent's own.
    """
    plan = state.plan
    if plan is not None and any(call.status == "active" for call in plan.calls):
        return AgentPhase.CALLS
    for name, phase in (
        (origin.effect_id("hook", ""), AgentPhase.HOOKS),
        (origin.effect_id("model", SUMMARY_CALL), AgentPhase.SUMMARY),
        (origin.effect_id("model", ""), AgentPhase.MODEL),
    ):
        if any(effect_id.startswith(name) for effect_id in waiting):
            return phase
    return AgentPhase.OVER
