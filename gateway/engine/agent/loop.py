"""The loop of a turn: steps until an answer, a pause, a rollover or a failure (agent-engine 14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.engine.agent import texts
from gateway.engine.agent.cancellation import cancel_plan
from gateway.engine.agent.candidate import Candidate, read_candidate
from gateway.engine.agent.compaction_size import passes_threshold
from gateway.engine.agent.definition import AgentDefinition
from gateway.engine.agent.dispatch import Dispatched, Dispatcher
from gateway.engine.agent.effects import Origin, Prompt, model_effect
from gateway.engine.agent.ids import IdScope
from gateway.engine.agent.input import Event, Message
from gateway.engine.agent.plan import Plan
from gateway.engine.agent.prompt_items import instructions_item
from gateway.engine.agent.rollover import Rollover
from gateway.engine.agent.sealing import final_output, seal_plan
from gateway.engine.agent.state import AgentState
from gateway.engine.contract import ABSENT, Absent, EffectRequest
from gateway.engine.failures import (
    EngineFailure,
    HostFailure,
    RunStopped,
    Suspended,
    WorkFailed,
    failure_code,
)
from gateway.engine.host import Host
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


@dataclass(frozen=True, slots=True)
class _Tripwire:
    """A step that ends the turn as failed."""

    failure: EngineFailure
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class _Final:
    """A step that gave the turn's output."""

    candidate: Candidate
    output: JsonValue


@dataclass(frozen=True, slots=True)
class _Calls:
    """A step that called tools."""

    candidate: Candidate
    plan: Plan


_Step = _Tripwire | _Final | _Calls


class AgentRun:
    """One agent running until its segment ends: the root, or later a child inside a delegation."""

    def __init__(
        self,
        *,
        host: Host,
        origin: Origin,
        definition: AgentDefinition,
        state: AgentState,
        ids: IdScope,
        info: JsonValue | Absent,
        rollover: Rollover,
    ) -> None:
        self._host = host
        self._origin = origin
        self._definition = definition
        self._state = state
        self._ids = ids
        self._rollover = rollover
        self._dispatcher = Dispatcher(host, origin, state, info, definition.output_schema_of)
        text = "\n\n".join(definition.instructions)
        self._instructions = instructions_item(text) if text else None

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
            turn_id, step_number = plan.turn_id, plan.step_number + 1
            state.transcript.begin_turn(turn_id)
            state.status = "active"
            state.record()
            ending = yield from self._dispatch(plan)
            if ending is not None:
                return ending
        elif state.turn is not None:
            turn_id = state.turn["turnId"]
            step_number = 1 + state.transcript.candidates_of(turn_id)
            state.transcript.begin_turn(turn_id)
            state.status = "active"
            state.record()
        else:
            turn_id, step_number = self._begin_turn(event), 1
        return (yield from self._steps(turn_id, step_number))

    def _begin_turn(self, event: Event) -> str:
        state = self._state
        turn_id = self._ids.new_id("turn")
        state.turn_count += 1
        state.status = "active"
        state.transcript.begin_turn(turn_id)
        if isinstance(event, Message):
            state.transcript.append({"kind": "input", "turnId": turn_id, "event": event.event})
        state.record()
        return turn_id

    def _steps(self, turn_id: str, step_number: int) -> Work[Ending]:
        while True:
            if self._host.aborted:
                return self._cancelled()
            if self._rollover.due(self._host.now_ms):
                return self._yielded(turn_id)
            step_id = self._ids.new_id("step")
            self._refuse_compaction()
            step = yield from self._step(turn_id, step_id, step_number)
            ending = yield from self._take(step, turn_id, step_id)
            if ending is not None:
                return ending
            step_number += 1
            self._rollover.count_step()

    def _refuse_compaction(self) -> None:
        if passes_threshold(self._state.transcript):
            raise EngineFailure(
                "execution.failed",
                "The conversation has reached its context window, and compaction is not built yet",
            )

    def _step(self, turn_id: str, step_id: str, step_number: int) -> Work[_Step]:
        """One model call and what it comes to."""
        tools = self._definition.tools
        if tools.duplicates:
            message = texts.duplicate_tools(tools.duplicates)
            return _Tripwire(EngineFailure("configuration.duplicate-tool-name", message))
        try:
            answer = yield from self._host.ask(self._model_effect())
            value = answer.outcome.get("value", ABSENT)
            candidate = read_candidate(value, self._ids, plain=answer.plain)
        except (EngineFailure, HostFailure, RunStopped) as failure:
            return _Tripwire(_as_engine_failure(failure, "model.failed"))
        if candidate.calls:
            plan = seal_plan(
                candidate, tools, self._ids, turn_id=turn_id, step_id=step_id, step_number=step_number
            )
            return _Calls(candidate, plan)
        try:
            return _Final(candidate, final_output(candidate, self._definition))
        except EngineFailure as failure:
            return _Tripwire(failure, candidate)

    def _model_effect(self) -> EffectRequest:
        canonical, wire = self._state.transcript.prompt()
        return model_effect(
            self._origin,
            invocation_id=self._ids.new_id("invocation"),
            execution_id=self._state.execution_id,
            prompt=Prompt(self._instructions, canonical, wire),
            tools=self._definition.tools,
            definition=self._definition,
        )

    def _take(self, step: _Step, turn_id: str, step_id: str) -> Work[Ending | None]:
        """Writes a step down. Returns how the run ends, or None when it goes on."""
        if self._host.aborted:
            return self._cancelled()
        state = self._state
        if step.candidate is not None:
            entry = {
                "kind": "candidate",
                "turnId": turn_id,
                "stepId": step_id,
                "candidate": step.candidate.document,
            }
            state.transcript.append(entry, plain=step.candidate.plain)
        if isinstance(step, _Tripwire):
            return self._failed(step.failure)
        if isinstance(step, _Final):
            state.transcript.append(
                {"kind": "final", "turnId": turn_id, "stepId": step_id, "output": step.output},
                plain=isinstance(step.output, str),
            )
            self._end("completed")
            return Ending("completed", output=step.output)
        state.plan = step.plan
        state.record()
        return (yield from self._dispatch(step.plan))

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
            state.turn = {"turnId": turn_id, "attempts": {"afterStep": 0, "afterTurn": 0}}
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
        return self._failed(_as_engine_failure(failure, otherwise))


def _as_engine_failure(failure: WorkFailed, otherwise: str) -> EngineFailure:
    if isinstance(failure, EngineFailure):
        return failure
    return EngineFailure(failure_code(failure, otherwise), failure.message)
