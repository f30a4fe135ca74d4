"""Which recorded engine cases need something that is not built yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def needs_unbuilt(manifest: Any) -> str | None:
    """The feature that a case needs and no engine has, or None."""
    if not isinstance(manifest, Mapping):
        return None
    if "workflowSchemaVersion" in manifest or manifest.get("kind") == "workflow":
        return "flows"
    return None


def case_needs_unbuilt(record: Mapping[str, Any]) -> str | None:
    """The same for a record with steps."""
    for step in record["steps"]:
        missing = needs_unbuilt(step["input"].get("manifest", record["manifest"]))
        if missing is not None:
            return missing
    return None
