"""The model and tool effects of an agent: their documents and request hashes (agent-engine 8, 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.engine.agent.definition import ToolList
from gateway.engine.agent.origin import Origin
from gateway.engine.agent.plan import Plan, PlanCall
from gateway.engine.contract import ABSENT, Absent, EffectRequest, ModelCall
from gateway.engine.fragments import Fragment, Spliced, around_member, canonical_object, fragment, quote
from protocol.canonical import canonical_request, hash_pieces
from protocol.jsjson import JsonValue


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
    output_schema: Fragment | None,
) -> EffectRequest:
    """A step's model call. Its prompt is hashed and sent from the same cached pieces."""
    draft = origin.draft(origin.effect_id("model", invocation_id), "model")
    draft.add("context", {"invocationId": invocation_id}, b'{"invocationId":%b}' % quote(invocation_id))
    head, tail = around_member(draft.texts, "input")
    start, end = b'{"executionId":%b' % quote(execution_id), b'],"tools":'
    before, sent_before = b"", b""
    if output_schema is not None:
        before = b',"outputSchema":' + output_schema.canonical
        sent_before = b',"outputSchema":' + output_schema.wire
    hashed = prompt.within(
        prompt.canonical,
        b'%b%b%b,"prompt":[' % (head, start, before),
        (end, tools.listing.canonical, b"}" + tail),
    )
    sent = prompt.within(
        prompt.wire, b'%b%b,"prompt":[' % (start, sent_before), (end, tools.listing.wire, b"}")
    )
    return draft.request(hash_pieces(hashed), ModelCall(sent))


def summary_effect(
    origin: Origin, *, invocation_id: str, compaction: JsonValue, call: Mapping[str, JsonValue]
) -> EffectRequest:
    """A model call that sums up a part of the conversation (agent-engine 17b)."""
    draft = origin.draft(origin.effect_id("model", invocation_id), "model")
    draft.add("context", {"invocationId": invocation_id, "compaction": compaction})
    head, tail = around_member(draft.texts, "input")
    both = fragment(dict(call))
    return draft.request(hash_pieces([head, both.canonical, tail]), ModelCall((both.wire,)))


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
    ids = {
        "executionId": dispatch.execution_id,
        "turnId": plan.turn_id,
        "stepId": plan.step_id,
        "callId": call.call_id,
        "invocationId": call.invocation_id,
        "idempotencyKey": origin.within(call.call_id),
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
    draft = origin.draft(origin.effect_id("tool", call.invocation_id), "tool")
    capability_id: str = call.reference["capabilityId"]
    draft.add("capabilityId", capability_id, quote(capability_id))
    draft.add("toolName", call.tool_name, quote(call.tool_name))
    draft.add("input", call.args)
    draft.add("context", context, canonical_object(context_texts))
    return draft.hashed()
