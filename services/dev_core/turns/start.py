"""What a run starts from, as the text of a lease's answer (harness-api 3, TurnStart; agent-engine 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol import jsjson
from protocol.jsjson import RawJson
from services.dev_core.manifests import McpTools
from services.dev_core.turns.lease import Taken

ENGINE_VERSION: Final = "hosted-3"
CHECKPOINT_VERSION: Final = 1
YIELD_AFTER: Final = {"steps": 50, "ms": 1_200_000}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The settings that every run gets: `hold_ms` milliseconds, 0 for no hold."""

    fixture_model: bool
    hold_ms: int


def lease_answer(
    taken: Taken,
    run_id: str,
    manifest: str,
    mcp: McpTools,
    options: RunOptions,
    token: Mapping[str, str],
) -> str:
    """The result of `lease`: grant and TurnStart. Documents go in as the texts they are stored as.

    `token`: what the grant says of the run's token.
    """
    session_id = taken.session.id
    is_answer = taken.segment > 0 and taken.input.startswith(('{"kind":"approve"', '{"kind":"respond"'))
    routing: dict[str, Any] = {"rootManifest": RawJson(manifest), "pluginRoots": {}}
    if taken.mcp_snapshot is not None:
        routing["mcpSnapshot"] = RawJson(taken.mcp_snapshot)
    routing["sandbox"] = {"ownerId": session_id}
    start = {
        "type": "approval.answer" if is_answer else "turn.start",
        "engine": "agent",
        "manifest": RawJson(manifest),
        "checkpoint": _checkpoint(taken),
        "sessionTools": RawJson(mcp.session_tools),
        "outcomes": [
            {"effectId": effect_id, "requestHash": request_hash, "outcome": RawJson(outcome)}
            for effect_id, request_hash, outcome in taken.outcomes
        ],
        "transcript": {"cursor": taken.cursor if taken.state is not None else -1},
        "options": {
            "yieldAfter": YIELD_AFTER,
            "fixtureModel": options.fixture_model,
            "holdMs": options.hold_ms,
        },
        "routing": routing,
    }
    grant = {"runId": run_id, "sessionId": session_id, "turnId": taken.turn_id, "epoch": taken.epoch, **token}
    # Every name and id here is ASCII, so orjson writes this frame around the stored texts.
    return jsjson.dumps({"run": grant, "input": start}, plain=True)


def _checkpoint(taken: Taken) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {
        "version": CHECKPOINT_VERSION,
        "engineVersion": ENGINE_VERSION,
        "manifestHash": taken.session.manifest_hash,
        "sessionId": taken.session.id,
        "turnId": taken.turn_id,
        "segment": taken.segment,
        "input": RawJson(taken.input),
    }
    if taken.state is not None:
        checkpoint["state"] = RawJson(taken.state)
    if taken.info is not None:
        checkpoint["info"] = RawJson(taken.info)
    return checkpoint
