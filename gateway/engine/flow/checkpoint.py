"""The checkpoint a flow's turn starts from, the same for every run of the turn (flow-engine 1, 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.contract import ABSENT, EngineRefused
from gateway.engine.definitions import WorkflowManifest
from gateway.engine.flow.values import Value
from gateway.engine.shapes import ShapeError, at_least, name, whole

CHECKPOINT_VERSION: Final = 1
ENGINE_VERSIONS: Final = {1: "flow-1", 2: "flow-2"}
"""The engine that runs the manifests of a workflow schema version."""

_CHECKPOINT: Final = at_least({"sessionId": name, "turnId": name, "segment": whole(0)})


@dataclass(frozen=True, slots=True)
class FlowCheckpoint:
    """A checkpoint that fits its manifest."""

    session_id: str
    turn_id: str
    segment: int
    manifest_hash: str
    input: Value


def read_checkpoint(
    document: Mapping[str, Any], manifest: WorkflowManifest, *, plain: bool
) -> FlowCheckpoint:
    """Checks the checkpoint; `plain` says that it is plain. Raises EngineRefused `execution.incompatible`."""
    version = document.get("version")
    engine = ENGINE_VERSIONS[manifest.version]
    if isinstance(version, bool) or version != CHECKPOINT_VERSION or document.get("engineVersion") != engine:
        raise _incompatible(f"The checkpoint is not one of engine {engine}, which runs this workflow")
    if document.get("manifestHash") != manifest.hash:
        raise _incompatible("The checkpoint is of another workflow manifest")
    try:
        _CHECKPOINT(document, "checkpoint")
    except ShapeError as error:
        raise _incompatible(f"Invalid checkpoint: {error}") from None
    return FlowCheckpoint(
        session_id=document["sessionId"],
        turn_id=document["turnId"],
        segment=document["segment"],
        manifest_hash=manifest.hash,
        input=Value(document.get("input", ABSENT), plain),
    )


def _incompatible(message: str) -> EngineRefused:
    return EngineRefused("execution.incompatible", message)
