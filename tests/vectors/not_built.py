"""Which recorded engine cases need something that is not built yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def needs_unbuilt(manifest: Any, effects: Iterable[Any]) -> str | None:
    """The feature that a case needs and the engine lacks, or None."""
    if not isinstance(manifest, Mapping):
        return None
    if "workflowSchemaVersion" in manifest or manifest.get("kind") == "workflow":
        return "flows"
    for capability in manifest.get("capabilities", ()):
        if capability.get("hooks"):
            return "hooks"
        if any("agent" in tool for tool in capability.get("tools", ())):
            return "delegation"
    if any(":model:compaction-" in effect["effectId"] for effect in effects):
        return "compaction"
    return None


def case_needs_unbuilt(record: Mapping[str, Any]) -> str | None:
    """The same for a record with steps."""
    for step in record["steps"]:
        manifest = step["input"].get("manifest", record["manifest"])
        effects = step["expect"].get("effects", ())
        missing = needs_unbuilt(manifest, effects)
        if missing is not None:
            return missing
    return None
