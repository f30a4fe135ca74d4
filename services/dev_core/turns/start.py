"""What a run starts from, as the text of a lease's answer (harness-api 3, TurnStart; agent-engine 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from protocol import jsjson
from protocol.jsjson import RawJson
from services.dev_core.manifests import ManifestFacts, McpTools
from services.dev_core.turns.lease import Taken

ENGINE_VERSION: Final = "hosted-3"
CHECKPOINT_VERSION: Final = 1
YIELD_AFTER: Final = {"steps": 50, "ms": 1_200_000}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The settings that every run gets: `hold_ms` milliseconds, 0 for no hold."""

    fixture_model: bool
    hold_ms: int
    flow_limits: Mapping[str, int] = field(default_factory=dict)
    """maxMapItems, maxLoopIterations and maxConcurrency of every flow."""


def lease_answer(
    taken: Taken,
    run_id: str,
    facts: ManifestFacts,
    pinned: str,
    mcp: McpTools,
    options: RunOptions,
    token: Mapping[str, str],
) -> str:
    """The result of `lease`: grant and TurnStart. Documents go in as the texts they are stored as.

    `facts` are those of the manifest that the turn runs with, `pinned` is the session's own; `token`: what the
    grant says of the run's token.
    """
    session_id = taken.session.id
    routing: dict[str, Any] = {"rootManifest": RawJson(pinned), "pluginRoots": {}}
    if taken.mcp_snapshot is not None:
        routing["mcpSnapshot"] = RawJson(taken.mcp_snapshot)
    routing["sandbox"] = {"ownerId": session_id}
    start = {
        **(
            _agent_start(taken, facts, mcp) if facts.engine == "agent" else _flow_start(taken, facts, options)
        ),
        "manifest": RawJson(facts.text),
        "outcomes": [
            {"effectId": effect_id, "requestHash": request_hash, "outcome": RawJson(outcome)}
            for effect_id, request_hash, outcome in taken.outcomes
        ],
        "routing": routing,
    }
    start["options"] |= {"fixtureModel": options.fixture_model, "holdMs": options.hold_ms}
    grant = {"runId": run_id, "sessionId": session_id, "turnId": taken.turn_id, "epoch": taken.epoch, **token}
    # Every name and id here is ASCII, so orjson writes this frame around the stored texts.
    return jsjson.dumps({"run": grant, "input": start}, plain=True)


def _agent_start(taken: Taken, facts: ManifestFacts, mcp: McpTools) -> dict[str, Any]:
    is_answer = taken.segment > 0 and taken.input.startswith(('{"kind":"approve"', '{"kind":"respond"'))
    checkpoint = _checkpoint(taken, facts, ENGINE_VERSION)
    if taken.state is not None:
        # Only linked sessions run with other manifests, and parsing every state would cost too much.
        linked = taken.session.parent_id is not None
        checkpoint["state"] = RawJson(_state_for(taken.state, facts) if linked else taken.state)
    if taken.info is not None:
        checkpoint["info"] = RawJson(taken.info)
    return {
        "type": "approval.answer" if is_answer else "turn.start",
        "engine": "agent",
        "checkpoint": checkpoint,
        "sessionTools": RawJson(mcp.session_tools),
        "transcript": {"cursor": taken.cursor if taken.state is not None else -1},
        "options": {"yieldAfter": YIELD_AFTER},
    }


def _flow_start(taken: Taken, facts: ManifestFacts, options: RunOptions) -> dict[str, Any]:
    return {
        "type": "turn.start",
        "engine": "flow",
        "checkpoint": _checkpoint(taken, facts, facts.engine),
        "transcript": {"cursor": -1},
        "options": {"flowLimits": dict(options.flow_limits)},
    }


def _checkpoint(taken: Taken, facts: ManifestFacts, engine_version: str) -> dict[str, Any]:
    return {
        "version": CHECKPOINT_VERSION,
        "engineVersion": engine_version,
        "manifestHash": facts.hash,
        "sessionId": taken.session.id,
        "turnId": taken.turn_id,
        "segment": taken.segment,
        "input": RawJson(taken.input),
    }


def _state_for(text: str, facts: ManifestFacts) -> str:
    """The session's state as a turn with this manifest starts from it: a loop may change its agent between
    turns, and a state is its manifest's (agent-engine 4.2)."""
    state: Any = jsjson.loads(text)
    if state.get("manifestHash") == facts.hash:
        return text
    manifest: Any = jsjson.loads(facts.text)
    state["manifestHash"] = facts.hash
    state.pop("outputContract", None)
    if "outputSchema" in manifest:
        state["outputContract"] = manifest["outputSchema"]
    return jsjson.dumps(state)
