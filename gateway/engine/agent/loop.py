"""The loop of a turn: steps until an answer, a pause, a rollover or a failure (agent-engine 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.engine.agent import texts
from gateway.engine.agent.cancellation import cancel_plan
from gateway.engine.agent.candidate import CONTEXT_OVERFLOW, Candidate
from gateway.engine.agent.compaction import Compactor
from gateway.engine.agent.context import AgentContext, Place
from gateway.engine.agent.dispatch import Delegate, Dispatched, Dispatcher
from gateway.engine.agent.hook_results import TurnDecision
from gateway.engine.agent.hooks import Hooks
from gateway.engine.agent.input import Event, Message
from gateway.engine.agent.phase import phase_of
from gateway.engine.agent.plan import Plan
from gateway.engine.agent.rollover import Rollover
from gateway.engine.agent.sealing import checked_output
from gateway.engine.agent.step import (
    BLOCKED,
    Again,
    Final,
    Step,
    Steps,
    Tripwire,
    as_engine_failure,
    replaced,
)
from gateway.engine.contract import ABSENT, Absent, AgentSnapshot
from gateway.engine.failures import EngineFailure, Suspended, WorkFailed
from gateway.engine.tasks import Work
from protocol.jsjson import JsonValue

EndStatus = Literal["completed", "paused", "yielded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How an agent's run ended; its state says the rest."""

    status: EndStatus
    output: JsonValue | Absent = ABSENT
    pending: JsonValue | Absent = ABSENT
    error: EngineFailure | None = None


class AgentRun:
    """One agent running until its segment ends: the root, or a child inside a delegation."""

    def __init__(self, context: AgentContext, rollover: Rollover, delegate: Delegate | None = None) -> None:
        self._context = context
        self._host = context.host
        self._state = context.state
        self._ids = context.ids
        self._rollover = rollover
        self._dispatcher = Dispatcher(context, delegate)
        self._hooks = Hooks(context)
        self._steps = Steps(context, self._hooks)
        self._compactor = Compactor(context)
        self._overflow_met = False
        self._place: Place | None = None

    def snapshot(self, waiting: Sequence[str]) -> AgentSnapshot:
        """Where it stands, `waiting` being the effects in flight."""
        state, origin, place = self._state, self._context.origin, self._place
        child = origin.child
        return AgentSnapshot(
            path=state.agent_id if child is None else child.path,
            delegation_id=None if child is None else child.delegation_id,
            phase=phase_of(state, origin, waiting),
            turn_id=None if place is None else place.turn_id,
            step_id=None if place is None else place.step_id,
            step_number=None if place is None else place.number,
            state=state.document(),
            transcript=tuple(state.transcript.entries),
            turn_patch=self._steps.turn_patch,
            counters=self._ids.taken(),
            steps=self._rollover.steps,
        )

    def run(self, event: Event) -> Work[Ending]:
        """Runs to the end of the segment. Raises Suspended; every other failure becomes an ending."""
        if self._host.aborted:
            return self._cancelled()
        try:
            return (yield from self._run(event))
        except Suspended:
            raise
        except WorkFailed as failure:
            return self._failed_or_cancelled(failure, "execution.failed")

    def _run(self, event: Event) -> Work[Ending]:
        state = self._state
        plan = state.plan
        self._ids.new_id("run")
        if plan is not None:
            turn_id, number = plan.turn_id, plan.step_number + 1
            self._place = Place(turn_id, plan.step_id, plan.step_number, opens_turn=False)
            self._go_on(turn_id)
            ending = yield from self._dispatch(plan)
            if ending is not None:
                return ending
        elif state.turn is not None:
            turn_id = state.turn["turnId"]
            number = 1 + state.transcript.candidates_of(turn_id)
            self._go_on(turn_id)
        else:
            return (yield from self._step_by_step(self._begin_turn(event), 1, opens_turn=True))
        return (yield from self._step_by_step(turn_id, number, opens_turn=False))

    def _go_on(self, turn_id: str) -> None:
        state = self._state
        if state.turn is not None:
            self._steps.turn_patch = state.turn.get("patch", {})
        state.transcript.begin_turn(turn_id)
        state.status = "active"
        state.record()

    def _begin_turn(self, event: Event) -> str:
        state = self._state
        turn_id = self._ids.new_id("turn")
        state.turn_count += 1
        state.status = "active"
        state.transcript.begin_turn(turn_id)
        if isinstance(event, Message):
            state.transcript.append({"kind": "input", "turnId": turn_id, "event": event.event})
        if self._hooks.any:
            state.open_turn(turn_id, event.user_text if isinstance(event, Message) else None)
        state.record()
        return turn_id

    def _step_by_step(self, turn_id: str, number: int, *, opens_turn: bool) -> Work[Ending]:
        while True:
            if self._host.aborted:
                return self._cancelled()
            if self._rollover.due(self._host.now_ms):
                return self._yielded(turn_id)
            place = self._place = Place(turn_id, self._ids.new_id("step"), number, opens_turn)
            yield from self._compactor.before_step(place)
            step = yield from self._steps.run(place)
            ending = yield from self._take(step, place)
            if ending is not None:
                return ending
            number += 1
            opens_turn = False
            self._rollover.count_step()

    def _take(self, step: Step, place: Place) -> Work[Ending | None]:
        """Writes a step down. Returns how the run ends, or None when it goes on."""
        if self._host.aborted:
            return self._cancelled()
        if self._hooks.any:
            self._state.keep_patch(self._steps.turn_patch)
        if isinstance(step, Tripwire):
            return (yield from self._trip(step, place))
        self._overflow_met = False
        if isinstance(step, Final):
            return (yield from self._finish(step, place))
        if isinstance(step, Again):
            self._ask_again(step.candidate, step.feedback, "afterStep", place)
            return None
        if step.retried:
            self._state.count_attempt("afterStep")
        self._append_candidate(step.candidate, place)
        self._state.plan = step.plan
        self._state.record()
        return (yield from self._dispatch(step.plan))

    def _trip(self, step: Tripwire, place: Place) -> Work[Ending | None]:
        if step.failure.code == CONTEXT_OVERFLOW and not self._overflow_met:
            self._overflow_met = True
            if (yield from self._compactor.compact(place, "overflow")):
                return None
        if step.candidate is not None:
            self._append_candidate(step.candidate, place)
        return self._failed(step.failure)

    def _finish(self, step: Final, place: Place) -> Work[Ending | None]:
        """Ends the turn with an answer, if its hooks agree."""
        decision = yield from self._hooks.after_turn(place, step.candidate, step.output)
        if decision.retry is not None:
            self._ask_again(step.candidate, decision.retry, "afterTurn", place)
            return None
        step = self._with_replacement(step, decision)
        self._append_candidate(step.candidate, place)
        if decision.block is not None:
            return self._failed(EngineFailure(BLOCKED, decision.block, "execution"))
        self._state.transcript.append(
            {"kind": "final", "turnId": place.turn_id, "stepId": place.step_id, "output": step.output},
            plain=isinstance(step.output, str),
        )
        self._end("completed")
        return Ending("completed", output=step.output)

    def _with_replacement(self, step: Final, decision: TurnDecision) -> Final:
        """The answer that the hooks put in the place of the model's. Raises EngineFailure."""
        schema = self._context.definition.output_schema
        if schema is None:
            if decision.output is not ABSENT:
                raise EngineFailure("configuration.invalid", texts.HOOK_OUTPUT_WITHOUT_SCHEMA)
            if decision.text is None:
                return step
            text = decision.text
            return Final(replaced(step.candidate, {"type": "text", "text": text}), text)
        if decision.text is not None:
            raise EngineFailure("configuration.invalid", texts.HOOK_TEXT_WITH_SCHEMA)
        if decision.output is ABSENT:
            return step
        output = checked_output(decision.output, schema)
        return Final(replaced(step.candidate, {"type": "json", "value": output}), output)

    def _append_candidate(self, candidate: Candidate, place: Place) -> None:
        entry = {
            "kind": "candidate",
            "turnId": place.turn_id,
            "stepId": place.step_id,
            "candidate": candidate.document,
        }
        self._state.transcript.append(entry, plain=candidate.plain)

    def _ask_again(
        self,
        candidate: Candidate,
        feedback: str,
        counter: Literal["afterStep", "afterTurn"],
        place: Place,
    ) -> None:
        self._state.count_attempt(counter)
        self._append_candidate(candidate, place)
        event = {"kind": "user-message", "text": feedback, "metadata": {"source": "hook.retry"}}
        self._state.transcript.append({"kind": "input", "turnId": place.turn_id, "event": event})
        self._state.record()

    def _dispatch(self, plan: Plan) -> Work[Ending | None]:
        dispatched = yield from self._dispatcher.run(plan)
        if dispatched is Dispatched.CANCELLED:
            return self._cancelled()
        if dispatched is Dispatched.DONE:
            return None
        self._state.status = "paused"
        self._state.record()
        return Ending("paused", pending=[call.document() for call in plan.waiting()])

    # Endings

    def _end(self, status: Literal["completed", "failed", "cancelled"]) -> None:
        self._state.turn = None
        self._state.status = status
        self._state.record()

    def _yielded(self, turn_id: str) -> Ending:
        state = self._state
        if state.turn is None:
            state.open_turn(turn_id)
        state.status = "active"
        state.record()
        return Ending("yielded")

    def _failed(self, failure: EngineFailure) -> Ending:
        self._end("failed")
        return Ending("failed", error=failure)

    def _cancelled(self) -> Ending:
        if self._state.plan is not None:
            cancel_plan(self._state, self._state.plan)
        self._end("cancelled")
        return Ending("cancelled")

    def _failed_or_cancelled(self, failure: WorkFailed, otherwise: str) -> Ending:
        if self._host.aborted:
            return self._cancelled()
        return self._failed(as_engine_failure(failure, otherwise))
