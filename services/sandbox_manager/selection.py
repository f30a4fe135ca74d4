"""Which backend runs the workspaces (sandbox-manager 5.2 and 5.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Backend, Probe
from services.sandbox_manager.specs import DEFAULT_IMAGE

AUTO: Final = "auto"
NAMES: Final = (AUTO, "virtual")
"""Preferences that core may have. `local` can't be chosen by name: pods have nothing else."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice, made once. `reason` says why this backend, or why none."""

    preference: str
    backend: Backend | None
    reason: str
    probes: Sequence[Probe]

    def report(self) -> dict[str, JsonValue]:
        """The document of `workspace.report`."""
        return {
            "preference": self.preference,
            "backend": self.backend.name if self.backend is not None else None,
            "isolation": self.backend.isolation if self.backend is not None else None,
            "reason": self.reason,
            "probes": [_probe(probe) for probe in self.probes],
            "defaultImage": DEFAULT_IMAGE,
        }


class Selector:
    """Probes all backends on first use and remembers what came of it."""

    def __init__(self, preference: str, backends: Sequence[Backend]) -> None:
        self._preference = preference
        self._backends = tuple(backends)
        self._selection: Selection | None = None
        self._selecting = asyncio.Lock()

    @property
    def made(self) -> Selection | None:
        """The selection, once it has been made."""
        return self._selection

    async def select(self) -> Selection:
        """The selection. The first call probes, one backend after the other."""
        if self._selection is None:
            async with self._selecting:
                if self._selection is None:
                    probes = [await backend.probe() for backend in self._backends]
                    self._selection = choose(self._preference, self._backends, probes)
        return self._selection


def choose(preference: str, backends: Sequence[Backend], probes: Sequence[Probe]) -> Selection:
    """Decides; `probes` in the order of `backends`. An explicit choice never falls back to another."""
    wanted = preference.strip().lower() or AUTO
    if wanted not in NAMES:
        return Selection(AUTO, None, f"The sandbox backend {preference.strip()!r} is not known.", probes)
    candidates = [
        (backend, probe)
        for backend, probe in zip(backends, probes, strict=True)
        if wanted in {AUTO, backend.name}
    ]
    skipped: list[str] = []
    for backend, probe in candidates:
        if probe.available:
            reason = "; ".join(skipped) or probe.reason or probe.name
            return Selection(wanted, backend, reason, probes)
        skipped.append(probe.reason or f"{probe.name} is not available.")
    return Selection(wanted, None, "; ".join(skipped) or f"There is no backend {wanted!r} here.", probes)


def _probe(probe: Probe) -> dict[str, JsonValue]:
    document: dict[str, JsonValue] = {
        "name": probe.name,
        "available": probe.available,
        "isolation": probe.isolation,
    }
    if probe.reason is not None:
        document["reason"] = probe.reason
    if probe.version is not None:
        document["version"] = probe.version
    return document
