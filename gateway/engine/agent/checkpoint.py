"""The checkpoint a segment starts from, and whether this engine may continue it (agent-engine 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.agent.profile import CHECKPOINT_VERSION, Profile, profile_of
from gateway.engine.contract import ABSENT, Absent, EngineRefused
from gateway.engine.definitions import AgentManifest
from gateway.engine.shapes import ShapeError, at_least, name, whole
from protocol.jsjson import JsonValue

_CHECKPOINT: Final = at_least({"sessionId": name, "turnId": name, "segment": whole(0)})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of this engine's version; `state` is not checked beyond whose it is."""

    profile: Profile
    session_id: str
    turn_id: str
    segment: int
    input: JsonValue | Absent
    state: JsonValue | Absent
    info: JsonValue | Absent


def read_checkpoint(document: Mapping[str, Any], manifest: AgentManifest) -> Checkpoint:
    """Checks 2 and 3. Raises EngineRefused `execution.incompatible`."""
    profile = profile_of(document.get("engineVersion"))
    version = document.get("version")
    if profile is None or isinstance(version, bool) or version != CHECKPOINT_VERSION:
        raise _incompatible("The checkpoint is of another engine version")
    if document.get("manifestHash") != manifest.hash:
        raise _incompatible("The checkpoint is of another manifest")
    try:
        _CHECKPOINT(document, "checkpoint")
    except ShapeError as error:
        raise _incompatible(f"Invalid checkpoint: {error}") from None
    state = document.get("state", ABSENT)
    if isinstance(state, dict):
        _check_owner(state, document, manifest)
    return Checkpoint(
        profile=profile,
        session_id=document["sessionId"],
        turn_id=document["turnId"],
        segment=document["segment"],
        input=document.get("input", ABSENT),
        state=state,
        info=document.get("info", ABSENT),
    )


def _check_owner(state: Mapping[str, Any], checkpoint: Mapping[str, Any], manifest: AgentManifest) -> None:
    owner = (state.get("manifestHash"), state.get("agentId"), state.get("executionId"))
    if owner != (manifest.hash, manifest.document["id"], checkpoint["sessionId"]):
        raise _incompatible("The state is of another manifest, agent or session")


def _incompatible(message: str) -> EngineRefused:
    return EngineRefused("execution.incompatible", message)
