"""The effects an agent asks for: their ids, documents and request hashes (agent-engine 8, 9)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.agent.definition import AgentDefinition, ToolList
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.contract import ABSENT, Absent, EffectKind, EffectRequest, ModelCall
from gateway.engine.fragments import Spliced, around_member, canonical_object, kept, quote
from protocol.canonical import canonical_request, hash_pieces
from protocol.jsjson import JsonValue


class Origin:
    """What every effect of a segment says about where it comes from: the root agent's, always."""

    __slots__ = ("_members", "_texts", "segment", "turn_id")

    def __init__(
        self, *, session_id: str, turn_id: str, segment: int, agent_id: str, manifest_hash: str
    ) -> None:
        self.turn_id = turn_id
        self.segment = segment
        self._members = {
            "sessionId": session_id,
            "turnId": turn_id,
            "agentId": agent_id,
            "manifestHash": manifest_hash,
        }
        self._texts = {name: kept(quote(value)) for name, value in self._members.items()}

    def effect_id(self, kind: EffectKind, identity: str) -> str:
        """The id of an effect."""
        return f"{self.turn_id}:{self.segment}:{kind}:{identity}"

    def interaction_id(self, invocation_id: str) -> str:
        """The id of an interaction that a running tool asks for."""
        return f"{self.turn_id}:{self.segment}:interaction:{invocation_id}"

    def members(self, effect_id: str, kind: EffectKind) -> tuple[dict[str, JsonValue], dict[str, bytes]]:
        """The members that all effects have, and their canonical texts."""
        own: dict[str, str] = {"effectId": effect_id, "kind": kind}
        return {**own, **self._members}, {
            "effectId": quote(effect_id),
            "kind": quote(kind),
            **self._texts,
        }


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in pieces: the system message, if there is one, and the transcript's items.

    The items have a comma before each, for hashing and for sending. They are the transcript's own lists,
    which grow with every step, so they are gone over once, for the hash, and never copied.
    """

    instructions: bytes | None
    canonical: list[bytes]
    wire: list[bytes]

    def within(self, items: list[bytes], before: bytes, after: tuple[bytes, ...]) -> Spliced:
        """The prompt's items, the first one without its comma, with these pieces around."""
        if self.instructions is not None:
            return Spliced((before, self.instructions), items, after)
        first = (before, items[0][1:]) if items else (before,)
        return Spliced(first, items, after, skip=len(first) - 1)


def model_effect(
    origin: Origin,
    *,
    invocation_id: str,
    execution_id: str,
    prompt: Prompt,
    tools: ToolList,
    definition: AgentDefinition,
) -> EffectRequest:
    """A step's model call. Its prompt is hashed and sent from the same cached pieces."""
    effect_id = origin.effect_id("model", invocation_id)
    document, texts = origin.members(effect_id, "model")
    document["context"] = {"invocationId": invocation_id}
    texts["context"] = b'{"invocationId":%b}' % quote(invocation_id)
    head, tail = around_member(texts, "input")
    start, end = b'{"executionId":%b' % quote(execution_id), b'],"tools":'
    schema = definition.output_schema_text
    before, sent_before = b"", b""
    if schema is not None:
        before = b',"outputSchema":' + schema.canonical
        sent_before = b',"outputSchema":' + schema.wire
    hashed = prompt.within(
        prompt.canonical,
        b'%b%b%b,"prompt":[' % (head, start, before),
        (end, tools.listing.canonical, b"}" + tail),
    )
    sent = prompt.within(
        prompt.wire, b'%b%b,"prompt":[' % (start, sent_before), (end, tools.listing.wire, b"}")
    )
    return EffectRequest(
        effect_id=effect_id,
        kind="model",
        document=document,
        request_hash=hash_pieces(hashed),
        model_call=ModelCall(sent),
    )


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What the tool effects of one dispatch share: the plan, and the session memory when it started."""

    plan: Plan
    execution_id: str
    bag: dict[str, JsonValue]
    bag_text: bytes
    info: JsonValue | Absent
    info_text: bytes


def start_dispatch(
    plan: Plan, execution_id: str, bag: dict[str, JsonValue], info: JsonValue | Absent
) -> Dispatch:
    """The shared part of a dispatch's effects."""
    info_text = b"" if info is ABSENT else canonical_request(info)
    return Dispatch(plan, execution_id, bag, canonical_request(bag), info, info_text)


def tool_effect(origin: Origin, dispatch: Dispatch, call: PlanCall) -> EffectRequest:
    """The call of a hosted tool."""
    plan = dispatch.plan
    effect_id = origin.effect_id("tool", call.invocation_id)
    ids = {
        "executionId": dispatch.execution_id,
        "turnId": plan.turn_id,
        "stepId": plan.step_id,
        "callId": call.call_id,
        "invocationId": call.invocation_id,
        "idempotencyKey": call.call_id,
    }
    context: dict[str, JsonValue] = {**ids}
    context_texts = {name: quote(value) for name, value in ids.items()}
    if dispatch.info is not ABSENT:
        context["info"] = dispatch.info
        context_texts["info"] = dispatch.info_text
    context["state"] = dispatch.bag
    context_texts["state"] = dispatch.bag_text
    if call.resume is not None:
        context["resume"] = call.resume
        context_texts["resume"] = canonical_request(call.resume)
    document, texts = origin.members(effect_id, "tool")
    target = {"capabilityId": call.reference["capabilityId"], "toolName": call.tool_name}
    document.update(target)
    texts.update((name, quote(value)) for name, value in target.items())
    document["input"] = call.args
    texts["input"] = canonical_request(call.args)
    document["context"] = context
    texts["context"] = canonical_object(context_texts)
    return EffectRequest(
        effect_id=effect_id,
        kind="tool",
        document=document,
        request_hash=hash_pieces([canonical_object(texts)]),
    )
