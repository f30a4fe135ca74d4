"""One step: what hooks say, the model call, and what its candidate comes to (agent-engine 14, 5 to 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.engine.agent import texts
from gateway.engine.agent.candidate import Candidate, read_candidate
from gateway.engine.agent.context import AgentContext, Place
from gateway.engine.agent.definition import ToolList
from gateway.engine.agent.effects import Prompt, model_effect
from gateway.engine.agent.hook_results import Before, Patch, layer
from gateway.engine.agent.hooks import Hooks, Messages
from gateway.engine.agent.plan import Plan
from gateway.engine.agent.prompt_items import instructions_item
from gateway.engine.agent.sealing import final_output, seal_plan
from gateway.engine.contract import ABSENT, EffectRequest
from gateway.engine.failures import (
    EngineFailure,
    HostFailure,
    RunStopped,
    WorkFailed,
    failure_code,
)
from gateway.engine.tasks import Work
from protocol.jsjson import JsonValue

BLOCKED = "dynamics.blocked"


@dataclass(frozen=True, slots=True)
class Tripwire:
    """A step that ends the turn as failed, unless it can be mended."""

    failure: EngineFailure
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """A step that gave the turn's output."""

    candidate: Candidate
    output: JsonValue


@dataclass(frozen=True, slots=True)
class Again:
    """A step whose answer a hook refused: the model is asked again with the feedback."""

    candidate: Candidate
    feedback: str


@dataclass(frozen=True, slots=True)
class Calls:
    """A step that called tools; `retried` says that a hook refused all calls that could have run."""

    candidate: Candidate
    plan: Plan
    retried: bool


Step = Tripwire | Final | Again | Calls


class Steps:
    """Runs the steps of one agent and remembers what the turn's first hook changed for all of them."""

    def __init__(self, context: AgentContext, hooks: Hooks) -> None:
        self._context = context
        self._hooks = hooks
        self._instructions = self._instructions_with({})
        self._visible: tuple[tuple[frozenset[str], frozenset[str]], ToolList] | None = None
        self.turn_patch: Patch = {}

    def run(self, place: Place) -> Work[Step]:
        """The step's outcome. Raises Suspended, and NoVerdict for arguments that can't be judged."""
        try:
            before = yield from self._before(place)
        except (EngineFailure, HostFailure, RunStopped) as failure:
            return Tripwire(as_engine_failure(failure, "configuration.invalid"))
        tools = self._tools(before)
        if tools.duplicates:
            message = texts.duplicate_tools(tools.duplicates)
            return Tripwire(EngineFailure("configuration.duplicate-tool-name", message))
        try:
            answer = yield from self._context.host.ask(self._model_effect(before, tools))
            value = answer.outcome.get("value", ABSENT)
            candidate = read_candidate(value, self._context.ids, plain=answer.plain)
        except (EngineFailure, HostFailure, RunStopped) as failure:
            return Tripwire(as_engine_failure(failure, "model.failed"))
        return (yield from self._decide(place, candidate, tools))

    def _before(self, place: Place) -> Work[Patch]:
        """The patch of the step, the turn's included. Raises EngineFailure for a block too."""
        hooks = self._hooks
        if not hooks.any:
            return self.turn_patch
        messages = Messages(self._prompt(self._instructions))
        if place.opens_turn:
            turn = yield from hooks.before_turn(place, messages)
            if turn.block is not None:
                raise EngineFailure(BLOCKED, turn.block, "execution")
            self.turn_patch = turn.patch
        step: Before = yield from hooks.before_step(place, messages)
        self._context.state.record()
        if step.block is not None:
            raise EngineFailure(BLOCKED, step.block)
        return layer(self.turn_patch, step.patch)

    def _decide(self, place: Place, candidate: Candidate, tools: ToolList) -> Work[Step]:
        try:
            decision = yield from self._hooks.after_step(place, candidate)
        except (EngineFailure, HostFailure, RunStopped) as failure:
            return Tripwire(as_engine_failure(failure, "model.failed"), candidate)
        if self._hooks.any:
            self._context.state.record()
        if decision.block is not None:
            return Tripwire(EngineFailure(BLOCKED, decision.block), candidate)
        if decision.retry is not None and not candidate.calls:
            return Again(candidate, decision.retry)
        if decision.text is not None:
            candidate = replaced(candidate, {"type": "text", "text": decision.text})
        if candidate.calls:
            plan = seal_plan(candidate, tools, self._context.ids, place, decision)
            return Calls(candidate, plan, retried=decision.retry is not None)
        try:
            return Final(candidate, final_output(candidate, self._context.definition))
        except EngineFailure as failure:
            return Tripwire(failure, candidate)

    # The model call

    def _model_effect(self, patch: Patch, tools: ToolList) -> EffectRequest:
        context = self._context
        instructions = self._instructions_with(patch) if patch.get("instructions") else self._instructions
        return model_effect(
            context.origin,
            invocation_id=context.ids.new_id("invocation"),
            execution_id=context.state.execution_id,
            prompt=self._prompt(instructions),
            tools=tools,
            output_schema=context.definition.output_schema_text,
        )

    def _prompt(self, instructions: bytes | None) -> Prompt:
        canonical, wire = self._context.state.transcript.prompt()
        return Prompt(instructions, canonical, wire)

    def _instructions_with(self, patch: Patch) -> bytes | None:
        text = "\n\n".join([*self._context.definition.instructions, *patch.get("instructions", ())])
        return instructions_item(text) if text else None

    def _tools(self, patch: Patch) -> ToolList:
        """The tools that are not switched off."""
        tools = self._context.definition.tools
        capabilities_off = _switched_off(patch.get("capabilities", {}))
        tools_off = _switched_off(patch.get("tools", {}))
        if not capabilities_off and not tools_off:
            return tools
        key = capabilities_off, tools_off
        if self._visible is None or self._visible[0] != key:
            shown = [
                tool
                for tool in tools.tools
                if tool.capability_id not in capabilities_off and tool.name not in tools_off
            ]
            self._visible = key, ToolList.of(shown)
        return self._visible[1]


def _switched_off(toggles: dict[str, bool]) -> frozenset[str]:
    return frozenset(name for name, on in toggles.items() if not on)


def replaced(candidate: Candidate, block: dict[str, JsonValue]) -> Candidate:
    """The candidate with this block instead of its own; what the model said about itself stays."""
    return replace(candidate, document={**candidate.document, "output": [block]}, calls=(), plain=False)


def as_engine_failure(failure: WorkFailed, otherwise: str) -> EngineFailure:
    """The failure as a result shows it: with `otherwise` for a code that is not the engine's own."""
    if isinstance(failure, EngineFailure):
        return failure
    return EngineFailure(failure_code(failure, otherwise), failure.message)
