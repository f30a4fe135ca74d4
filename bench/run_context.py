"""A run as executors see it, and effects of it, without a core."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.engine.contract import EffectRequest, ModelCall
from gateway.executors.contract import RunContext, SandboxEvent
from protocol.jsjson import JsonValue

TENANT: Final = "bench"
PREFERENCE: Final = "auto"
SESSION: Final = "ses_bench"
TURN: Final = "t_bench"
HASH: Final = "0" * 64
_numbers = itertools.count()


async def _claimed(event: SandboxEvent) -> None:
    """Core's answer to an event that is claimed, at once."""
    del event


def run_context(
    manifest: Mapping[str, JsonValue],
    *,
    agent_id: str = "bench",
    snapshot: JsonValue = None,
    session: str = SESSION,
) -> RunContext:
    """A run of an agent."""
    return RunContext(
        tenant_id=TENANT,
        preference=PREFERENCE,
        run_id="run_bench",
        session_id=session,
        turn_id=TURN,
        epoch=1,
        agent_id=agent_id,
        fixture_model=False,
        root_manifest=manifest,
        plugin_roots={},
        token=lambda: None,
        claim_event=_claimed,
        mcp_snapshot=snapshot,
    )


def model_effect(call: bytes, identify: Callable[[str], Mapping[str, Any]] | None = None) -> EffectRequest:
    """A model call with an id of its own. `identify` adds what a core asks an effect to say of itself."""
    return _effect("model", {"context": {"invocationId": "inv_bench"}}, ModelCall((call,)), identify)


def tool_effect(capability_id: str, tool_name: str, input_: JsonValue) -> EffectRequest:
    """A tool's call with an id of its own."""
    members = {"capabilityId": capability_id, "toolName": tool_name, "input": input_}
    return _effect("tool", {**members, "context": {"invocationId": "inv_bench"}}, None, None)


def _effect(
    kind: Any,
    members: Mapping[str, Any],
    call: ModelCall | None,
    identify: Callable[[str], Mapping[str, Any]] | None,
) -> EffectRequest:
    local = f"{kind}:bench_{next(_numbers)}"
    identity = {"effectId": f"{TURN}:0:{local}"} if identify is None else identify(local)
    return EffectRequest(
        effect_id=identity["effectId"],
        kind=kind,
        document={**identity, "kind": kind, **members},
        request_hash=HASH,
        model_call=call,
        plain=True,
    )
