"""Manifest features that this engine refuses as yet, by name and before any effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.engine.contract import EngineRefused


def refuse_unbuilt(manifest: Mapping[str, Any]) -> None:
    """Raises EngineRefused without a code for a valid manifest with hooks, or with agents as tools."""
    for capability in manifest["capabilities"]:
        if capability.get("hooks"):
            raise EngineRefused(None, f"Hooks are not built yet (capability '{capability['id']}')")
        for tool in capability.get("tools", ()):
            if "agent" in tool:
                raise EngineRefused(None, f"Delegation is not built yet (tool '{tool['name']}')")
