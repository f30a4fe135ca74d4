"""Asking the hooks of one agent: one effect per point, whoever listens (agent-engine 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.engine.agent.candidate import Candidate
from gateway.engine.agent.context import AgentContext, Place
from gateway.engine.agent.effects import Prompt
from gateway.engine.agent.hook_points import AFTER_STEP, AFTER_TURN, BEFORE_STEP, BEFORE_TURN, HookPoint
from gateway.engine.agent.hook_results import (
    Before,
    Results,
    StepDecision,
    TurnDecision,
    merge_before,
    merge_step_decisions,
    merge_turn_decisions,
    results_of,
)
from gateway.engine.contract import ABSENT, EffectRequest
from gateway.engine.fragments import around_member
from gateway.engine.tasks import Work
from protocol.canonical import canonical_request, hash_pieces
from protocol.jsjson import JsonValue, RawJson


class Messages:
    """A step's prompt as hooks are shown it: written at most once."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._raw: RawJson | None = None

    def raw(self) -> RawJson:
        """The prompt as one text."""
        if self._raw is None:
            pieces = self._prompt.within(self._prompt.wire, b"[", (b"]",))
            self._raw = RawJson(b"".join(pieces).decode())
        return self._raw

    def hash_between(self, before: bytes, after: bytes) -> str:
        """The hash of a canonical text that has the prompt in it."""
        return hash_pieces(self._prompt.within(self._prompt.canonical, before + b"[", (b"]" + after,)))


class Hooks:
    """The hooks of one agent. Every method gives an empty result, at once, where nobody listens.

    Raises EngineFailure for results that don't fit, and what the host raises.
    """

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._registrants = context.definition.hooks

    @property
    def any(self) -> bool:
        """Whether the agent has hooks at all."""
        return bool(self._registrants)

    def before_turn(self, place: Place, messages: Messages) -> Work[Before]:
        """The turn's patch."""
        return (yield from self._before(BEFORE_TURN, place, self._started_with(), messages))

    def before_step(self, place: Place, messages: Messages) -> Work[Before]:
        """The step's patch."""
        members = self._started_with() | {"step": place.number - 1}
        return (yield from self._before(BEFORE_STEP, place, members, messages))

    def after_step(self, place: Place, candidate: Candidate) -> Work[StepDecision]:
        """What becomes of a candidate."""
        members: dict[str, JsonValue] = {}
        text = candidate.text()
        if text:
            members["text"] = text
        members["toolCalls"] = [
            {"id": call.call_id, "name": call.tool_name, "args": call.args} for call in candidate.calls
        ]
        members["step"] = place.number - 1
        members["attempt"] = self._attempt("afterStep")
        return merge_step_decisions((yield from self._after(AFTER_STEP, place, members)))

    def after_turn(self, place: Place, candidate: Candidate, output: JsonValue) -> Work[TurnDecision]:
        """What becomes of a turn's answer."""
        members: dict[str, JsonValue] = {}
        if self._context.definition.output_schema is None:
            members["text"] = candidate.text()
        members["output"] = output
        members["attempt"] = self._attempt("afterTurn")
        return merge_turn_decisions((yield from self._after(AFTER_TURN, place, members)))

    def _started_with(self) -> dict[str, JsonValue]:
        turn = self._context.state.turn
        return {} if turn is None or "input" not in turn else {"input": turn["input"]}

    def _attempt(self, counter: str) -> int:
        turn = self._context.state.turn
        attempt: int = 0 if turn is None else turn["attempts"][counter]
        return attempt

    def _before(
        self, point: HookPoint, place: Place, members: dict[str, JsonValue], messages: Messages
    ) -> Work[Before]:
        if point not in self._registrants:
            return Before()
        context = self._context
        results = yield from self._ask(point, self._effect(point, place, members, messages))
        return merge_before(results, context.definition, context.state.merge)

    def _after(self, point: HookPoint, place: Place, members: dict[str, JsonValue]) -> Work[Results]:
        if point not in self._registrants:
            return ()
        return (yield from self._ask(point, self._effect(point, place, members, None)))

    def _ask(self, point: HookPoint, effect: EffectRequest) -> Work[Results]:
        answer = yield from self._context.host.ask(effect)
        return results_of(answer.outcome.get("value", ABSENT), self._registrants[point])

    def _effect(
        self,
        point: HookPoint,
        place: Place,
        members: dict[str, JsonValue],
        messages: Messages | None,
    ) -> EffectRequest:
        context, origin = self._context, self._context.origin
        shown: Mapping[str, Any] = {} if context.info is ABSENT else {"info": context.info}
        members = {**members, **shown, "state": context.state.bag}
        draft = origin.draft(origin.effect_id("hook", point.identity(place.step_id)), "hook")
        draft.add("context", dict(shown))
        capability_ids = list(self._registrants[point])
        draft.add("hook", {"at": point.at, "scope": point.scope, "capabilityIds": capability_ids})
        if messages is None:
            draft.add("input", members)
            return draft.hashed()
        head, tail = around_member(draft.texts, "input")
        texts = {name: canonical_request(value) for name, value in members.items()}
        inner_head, inner_tail = around_member(texts, "messages")
        draft.document["input"] = {**members, "messages": messages.raw()}
        return draft.request(messages.hash_between(head + inner_head, inner_tail + tail))
