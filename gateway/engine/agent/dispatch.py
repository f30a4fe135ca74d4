"""Running a plan's calls (agent-engine 15.2)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from gateway.engine.agent.effects import Dispatch, Origin, start_dispatch, tool_effect
from gateway.engine.agent.outcomes import apply_failure, apply_value
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.agent.state import AgentState
from gateway.engine.contract import ABSENT, Absent, Completed
from gateway.engine.failures import Suspended
from gateway.engine.host import Host
from gateway.engine.tasks import Settled, Work, together
from protocol.jsjson import JsonValue
from protocol.json_schema import Schema


class Dispatched(enum.Enum):
    """How a dispatch ended."""

    DONE = "all calls have their results, and the plan is gone"
    PAUSED = "some call waits for a person or a settlement"
    CANCELLED = "the run was aborted meanwhile"


class Dispatcher:
    """Runs the calls of one agent's plans."""

    def __init__(
        self,
        host: Host,
        origin: Origin,
        state: AgentState,
        info: JsonValue | Absent,
        output_schema_of: Callable[[Mapping[str, Any]], Schema | None],
    ) -> None:
        self._host = host
        self._origin = origin
        self._state = state
        self._info = info
        self._output_schema_of = output_schema_of

    def run(self, plan: Plan) -> Work[Dispatched]:
        """Starts every call that can run and waits for all. Raises Suspended when one has no outcome."""
        if any(call.interaction_phase == "before" for call in plan.waiting()):
            return Dispatched.PAUSED
        running = [call for call in plan.calls if call.status in ("pending", "active")]
        if running:
            yield from self._run_calls(plan, running)
            if self._host.aborted:
                return Dispatched.CANCELLED
        if plan.waiting():
            return Dispatched.PAUSED
        record_results(self._state, plan)
        return Dispatched.DONE

    def _run_calls(self, plan: Plan, calls: list[PlanCall]) -> Work[None]:
        for call in calls:
            call.status = "active"
        self._state.record()
        dispatch = start_dispatch(plan, self._state.execution_id, self._state.bag, self._info)
        settled = yield from together([self._run_call(dispatch, call) for call in calls])
        for ended in settled:
            if isinstance(ended.failure, Suspended):
                raise ended.failure
        for call, ended in zip(calls, settled, strict=True):
            self._apply(call, ended)
        self._state.record()

    def _run_call(self, dispatch: Dispatch, call: PlanCall) -> Work[Completed]:
        return (yield from self._host.ask(tool_effect(self._origin, dispatch, call)))

    def _apply(self, call: PlanCall, ended: Settled[Completed]) -> None:
        if ended.failure is not None:
            apply_failure(call, ended.failure, aborted=self._host.aborted)
            call.plain = True
            return
        completed = ended.get()
        outcome = completed.outcome
        output_schema = self._output_schema_of(call.reference)
        patch = outcome.get("statePatch")
        if isinstance(patch, dict):
            self._state.merge(patch)
        apply_value(
            call,
            outcome.get("value", ABSENT),
            output_schema,
            self._origin.interaction_id(call.invocation_id),
        )
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
