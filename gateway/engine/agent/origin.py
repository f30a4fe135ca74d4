"""What all effects of an agent say about where they come from, and their ids (agent-engine 8)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.contract import EffectKind, EffectRequest, ModelCall
from gateway.engine.fragments import canonical_object, kept, quote
from protocol.canonical import canonical_request, hash_pieces
from protocol.jsjson import JsonValue


@dataclass(frozen=True, slots=True)
class AgentRef:
    """An agent used as a tool, as the effects of its run name it."""

    agent_id: str
    path: str
    delegation_id: str

    def document(self) -> dict[str, JsonValue]:
        """The reference as effects carry it."""
        return {"id": self.agent_id, "path": self.path, "delegationId": self.delegation_id}


class Origin:
    """The members that all effects of one agent have: the root's, and a child's reference to itself."""

    __slots__ = ("_members", "_texts", "child", "segment", "turn_id")

    def __init__(
        self, *, session_id: str, turn_id: str, segment: int, agent_id: str, manifest_hash: str
    ) -> None:
        self.turn_id = turn_id
        self.segment = segment
        self.child: AgentRef | None = None
        self._members: dict[str, JsonValue] = {
            "sessionId": session_id,
            "turnId": turn_id,
            "agentId": agent_id,
            "manifestHash": manifest_hash,
        }
        self._texts = {name: kept(canonical_request(value)) for name, value in self._members.items()}

    def of_child(self, child: AgentRef) -> Origin:
        """The origin of the effects of an agent that runs as a tool."""
        origin = Origin.__new__(Origin)
        origin.turn_id = self.turn_id
        origin.segment = self.segment
        origin.child = child
        document = child.document()
        origin._members = {**self._members, "agent": document}
        origin._texts = {**self._texts, "agent": kept(canonical_request(document))}
        return origin

    def effect_id(self, kind: EffectKind, identity: str) -> str:
        """The id of an effect that the agent's own run asks for."""
        return f"{self.turn_id}:{self.segment}:{kind}:{self.within(identity)}"

    def delegation_effect_id(self, kind: EffectKind, what: str) -> str:
        """The id of an effect about a child as a whole. The origin must be a child's."""
        assert self.child is not None
        return f"{self.turn_id}:{self.segment}:{kind}:{self.child.delegation_id}:{what}"

    def within(self, name: str) -> str:
        """A name of the agent's own run, told apart from the same name in its parent's."""
        return name if self.child is None else f"{self.child.delegation_id}/{name}"

    def interaction_id(self, invocation_id: str) -> str:
        """The id of an interaction that a running tool asks for."""
        return f"{self.turn_id}:{self.segment}:interaction:{invocation_id}"

    def draft(self, effect_id: str, kind: EffectKind) -> EffectDraft:
        """An effect with the members that all have."""
        document: dict[str, JsonValue] = {"effectId": effect_id, "kind": kind, **self._members}
        return EffectDraft(
            effect_id,
            kind,
            document,
            {"effectId": quote(effect_id), "kind": quote(kind), **self._texts},
        )


@dataclass(frozen=True, slots=True)
class EffectDraft:
    """An effect that is being put together: its members, and the canonical texts of those that are hashed."""

    effect_id: str
    kind: EffectKind
    document: dict[str, JsonValue]
    texts: dict[str, bytes]

    def add(self, name: str, value: JsonValue, text: bytes | None = None) -> None:
        """Adds a member; `text` is its canonical text when that is known already."""
        self.document[name] = value
        self.texts[name] = canonical_request(value) if text is None else text

    def hashed(self) -> EffectRequest:
        """The effect, hashed over the texts of its members."""
        return self.request(hash_pieces([canonical_object(self.texts)]))

    def request(self, request_hash: str, model_call: ModelCall | None = None) -> EffectRequest:
        """The effect with this hash of its canonical text."""
        return EffectRequest(
            effect_id=self.effect_id,
            kind=self.kind,
            document=self.document,
            request_hash=request_hash,
            model_call=model_call,
        )
