"""Running a plan's calls (agent-engine 15.2)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from gateway.engine.agent import texts
from gateway.engine.agent.context import AgentContext
from gateway.engine.agent.effects import Dispatch, start_dispatch, tool_effect
from gateway.engine.agent.outcomes import apply_failure, apply_value, failed, outcome_kind
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.agent.state import AgentState
from gateway.engine.contract import ABSENT, Completed
from gateway.engine.failures import Suspended
from gateway.engine.tasks import Settled, Work, together
from protocol.jsjson import JsonValue

Delegate: TypeAlias = Callable[[PlanCall, Mapping[str, Any]], Work[JsonValue]]
"""Runs the agent or flow, whose manifest is given, that a call names; gives the call's outcome."""


_MAY_NOT_ASK: Final = failed("delegation.interaction-unsupported", texts.CHILD_MAY_NOT_ASK)


class Dispatched(enum.Enum):
    """How a dispatch ended."""

    DONE = "all calls have their results, and the plan is gone"
    PAUSED = "some call waits for a person or a settlement"
    CANCELLED = "the run was aborted meanwhile"


class Dispatcher:
    """Runs the calls of one agent's plans. In a child, whatever would wait for somebody fails instead."""

    def __init__(self, context: AgentContext, delegate: Delegate | None) -> None:
        self._context = context
        self._state = context.state
        self._delegate = delegate

    def run(self, plan: Plan) -> Work[Dispatched]:
        """Starts every call that can run and waits for all. Raises Suspended when one has no outcome."""
        if self._context.is_child:
            for call in plan.waiting():
                call.settle(_MAY_NOT_ASK)
        if any(call.asks_before() for call in plan.calls):
            return Dispatched.PAUSED
        running = [call for call in plan.calls if call.status in ("pending", "active")]
        if running:
            yield from self._run_calls(plan, running)
            if self._context.host.aborted:
                return Dispatched.CANCELLED
        if plan.waiting():
            return Dispatched.PAUSED
        record_results(self._state, plan)
        return Dispatched.DONE

    def _run_calls(self, plan: Plan, calls: list[PlanCall]) -> Work[None]:
        for call in calls:
            call.status = "active"
        self._state.record()
        dispatch = start_dispatch(plan, self._state.execution_id, self._state.bag, self._context.info)
        settled = yield from together([self._run_call(dispatch, call) for call in calls])
        for ended in settled:
            if isinstance(ended.failure, Suspended):
                raise ended.failure
        for call, ended in zip(calls, settled, strict=True):
            self._apply(call, ended)
        self._state.record()

    def _run_call(self, dispatch: Dispatch, call: PlanCall) -> Work[Completed]:
        tool = self._context.definition.tool_of(call.reference)
        if tool is None or tool.agent is None:
            return (yield from self._context.host.ask(tool_effect(self._context.origin, dispatch, call)))
        assert self._delegate is not None
        return Completed({"value": (yield from self._delegate(call, tool.agent))})

    def _apply(self, call: PlanCall, ended: Settled[Completed]) -> None:
        if ended.failure is not None:
            apply_failure(call, ended.failure, aborted=self._context.host.aborted)
            call.plain = True
            return
        completed = ended.get()
        outcome = completed.outcome
        output_schema = self._context.definition.output_schema_of(call.reference)
        patch = outcome.get("statePatch")
        if isinstance(patch, dict):
            self._state.merge(patch)
        value = outcome.get("value", ABSENT)
        if self._context.is_child and outcome_kind(value) in ("interaction-required", "deferred"):
            call.settle(_MAY_NOT_ASK)
            return
        interaction_id = self._context.origin.interaction_id(call.invocation_id)
        apply_value(call, value, output_schema, interaction_id)
        # What a schema filled in or put in another order was not part of the plain text.
        call.plain = completed.plain and output_schema is None


def record_results(state: AgentState, plan: Plan) -> None:
    """Appends the results of a plan whose calls are all settled, and drops the plan."""
    state.transcript.append(
        {
            "kind": "tool-results",
            "turnId": plan.turn_id,
            "stepId": plan.step_id,
            "results": plan.results(),
        },
        plain=all(call.plain for call in plan.calls),
    )
    state.plan = None
    state.record()
