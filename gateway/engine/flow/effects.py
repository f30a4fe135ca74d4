"""The effects of a flow: their ids, documents and hashes, and what an outcome means (flow-engine 4)."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, TypeAlias

from gateway.engine.contract import ABSENT, EffectRequest
from gateway.engine.flow.checkpoint import FlowCheckpoint
from gateway.engine.flow.failures import CANCELLED, NodeFailure
from gateway.engine.flow.values import Value
from gateway.engine.host import Host
from gateway.engine.tasks import Work
from protocol.canonical import canonical_request
from protocol.jsjson import JsonValue

FlowKind: TypeAlias = Literal["agent", "tool", "fn", "verify"]
Context: TypeAlias = dict[str, JsonValue]
NO_CONTEXT: Final[Context] = {}


class FlowEffects:
    """Asks for the effects of one flow. `cancelled` holds, in order, those that fail-fast gives up."""

    def __init__(self, host: Host, checkpoint: FlowCheckpoint, agent_id: str) -> None:
        self._host = host
        self._prefix = f"{checkpoint.turn_id}:{checkpoint.segment}:flow:"
        self._origin = {
            "sessionId": checkpoint.session_id,
            "turnId": checkpoint.turn_id,
            "agentId": agent_id,
            "manifestHash": checkpoint.manifest_hash,
        }
        self.cancelled: dict[str, None] = {}

    def check_abort(self) -> None:
        """Raises NodeFailure once the run is aborted."""
        abort = self._host.abort
        if abort is not None:
            raise NodeFailure(CANCELLED, abort.message, None)

    def cancel_suspended(self) -> None:
        """Gives up every effect of the flow that has no outcome: a concurrent stage failed."""
        self.cancelled |= dict.fromkeys(self._host.suspended())

    def ask(
        self,
        kind: FlowKind,
        value: Value,
        *,
        path: str,
        key: str,
        iterations: str,
        context: Context,
        role: str | None = None,
    ) -> Work[Value]:
        """The effect's value. Raises NodeFailure for a failed one, and what `Host.ask` raises."""
        self.check_abort()
        part = kind if role is None else f"{kind}.{role}"
        effect_id = f"{self._prefix}{path}:{part}:{iterations}"
        if effect_id in self.cancelled:
            raise NodeFailure(CANCELLED, "The effect was given up when another branch failed", path)
        document: dict[str, Any] = {
            "effectId": effect_id,
            **self._origin,
            "kind": kind,
            "path": path,
            "key": key,
            "iterations": iterations,
        }
        if value.json is not ABSENT:
            document["input"] = value.json
        document["context"] = context
        digest = hashlib.sha256(canonical_request(document, plain=value.plain)).hexdigest()
        completed = yield from self._host.ask(
            EffectRequest(
                effect_id=effect_id, kind=kind, document=document, request_hash=digest, plain=value.plain
            )
        )
        return _value(Value(completed.outcome.get("value", ABSENT), completed.plain), path)


def _value(value: Value, path: str) -> Value:
    found = value.json
    if isinstance(found, dict) and found.get("kind") == "failed":
        code, message, where = found.get("code"), found.get("message"), found.get("path")
        if isinstance(code, str):
            raise NodeFailure(
                code, message if isinstance(message, str) else code, where if isinstance(where, str) else path
            )
    return value
