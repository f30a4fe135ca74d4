"""Which backend runs the workspaces (sandbox-manager 5.2 and 5.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.contract import Backend, Probe
from services.sandbox_manager.javascript import trim
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


class Probes:
    """What probing the backends of a process came to; done once, for whoever asks first."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        self._found: list[Probe] | None = None
        self._probing = asyncio.Lock()

    async def all(self) -> Sequence[Probe]:
        """The probes in the order of the backends. The first call probes, one after the other."""
        async with self._probing:
            if self._found is None:
                self._found = [await backend.probe() for backend in self.backends]
        return self._found

    async def close(self) -> None:
        """Gives back what the backends hold; for a process that ends without having used them."""
        for backend in self.backends:
            await backend.close()


class Selector:
    """Chooses on first use and remembers the choice."""

    def __init__(self, preference: str, probes: Probes) -> None:
        self._preference = preference
        self._probes = probes
        self._selection: Selection | None = None

    @property
    def made(self) -> Selection | None:
        """The selection, once it has been made."""
        return self._selection

    async def select(self) -> Selection:
        """The selection. The first call may have to wait for the probes."""
        if self._selection is None:
            probes = await self._probes.all()
            self._selection = self._selection or choose(self._preference, self._probes.backends, probes)
        return self._selection


def choose(preference: str, backends: Sequence[Backend], probes: Sequence[Probe]) -> Selection:
    """Decides; `probes` in the order of `backends`. An explicit choice never falls back to another."""
    wanted = trim(preference).lower() or AUTO
    if wanted not in NAMES:
        return Selection(AUTO, None, f"The sandbox backend {trim(preference)!r} is not known.", probes)
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
