"""What an abort leaves of a plan (agent-engine 18.3)."""

from __future__ import annotations

from gateway.engine.agent.outcomes import failed
from gateway.engine.agent.plan import Plan
from gateway.engine.agent.state import AgentState
from gateway.engine.agent.texts import INVOCATION_CANCELLED


def cancel_plan(state: AgentState, plan: Plan) -> None:
    """Fails the calls without a result, writes all results down, and drops the plan.

    The unfinished calls are kept, as they stood, behind those of earlier cancellations. Not a record point
    of its own.
    """
    unfinished = [call for call in plan.calls if call.result is None]
    state.cancelled_calls = [*(state.cancelled_calls or ()), *(call.document() for call in unfinished)]
    for call in unfinished:
        call.settle(failed("tool.cancelled", INVOCATION_CANCELLED))
    state.transcript.append(
        {
            "kind": "tool-results",
            "turnId": plan.turn_id,
            "stepId": plan.step_id,
            "results": plan.results(),
        }
    )
    state.plan = None
