"""Which drivers stand behind the backend `virtual` (sandbox-manager 16.2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from services.sandbox_manager.bwrap.binary import find_bwrap
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.contract import Backend, BackendError, Handle, Probe, Traits
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.emulated.driver import EmulatedBackend
from services.sandbox_manager.specs import BackendSpec

DriverName = Literal["auto", "bwrap", "emulated", "container", "local"]
VirtualDriver = Literal["auto", "bwrap", "emulated", "container"]
DRIVERS: Final = ("auto", "bwrap", "emulated", "container")
"""Those that can be chosen; `local` is what a pod has, and nothing else."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Of the container driver: what the engine's host calls the harness root, whether images are pulled, and
    the image of the containers that forward to the proxy."""

    host_root: Path | None = None
    pull: bool = False
    egress_image: str | None = None


def workspaces_identity(uid: int) -> Identity | None:
    """The user that owns workspaces when this process is root; None when it isn't."""
    return Identity(uid, uid) if os.geteuid() == 0 else None


def make_backend(
    driver: VirtualDriver, disk: WorkspaceDisk, containers: ContainerSettings = ContainerSettings()
) -> Backend:
    """The backend of a driver; `auto` takes bubblewrap where it works, else the emulated shell.

    Containers are only taken when they are asked for: who holds an engine's socket is root on its host.
    """
    if driver == "container":
        return _container_backend(disk, containers)
    bwrap = BwrapBackend(disk, find_bwrap())
    emulated = EmulatedBackend(disk)
    match driver:
        case "bwrap":
            return bwrap
        case "emulated":
            return emulated
        case "auto":
            return FirstUsable((bwrap, emulated))


def _container_backend(disk: WorkspaceDisk, settings: ContainerSettings) -> Backend:
    # Imported when it is used: nobody else needs the engine's client.
    from services.sandbox_manager.container.driver import ContainerBackend
    from services.sandbox_manager.container.engine import Engine

    host_root = None if settings.host_root is None else settings.host_root / disk.root.name
    return ContainerBackend(
        disk,
        engine=Engine(None),
        host_root=host_root,
        pull=settings.pull,
        egress_image=settings.egress_image,
    )


class FirstUsable:
    """The first of several drivers of one backend whose probe succeeds; chosen once, by `probe`."""

    name: Final = "virtual"
    isolation: Final[Literal["process"]] = "process"

    def __init__(self, drivers: Sequence[Backend]) -> None:
        self._drivers = tuple(drivers)
        self._chosen: Backend | None = None

    @property
    def traits(self) -> Traits:
        """See Backend."""
        return self._driver().traits

    async def probe(self) -> Probe:
        """Probes the drivers in order; the reason names those that were passed over."""
        passed: list[str] = []
        for driver in self._drivers:
            found = await driver.probe()
            if found.available:
                self._chosen = driver
                reason = "; ".join([part for part in (found.reason, *passed) if part is not None])
                return Probe(self.name, True, self.isolation, reason or None, found.version)
            passed.append(found.reason or "a driver can't be used")
        return Probe(self.name, False, self.isolation, "; ".join(passed))

    def unmet(self, spec: BackendSpec) -> str | None:
        """See Backend."""
        return self._driver().unmet(spec)

    async def open(self, spec: BackendSpec) -> Handle:
        """See Backend."""
        return await self._driver().open(spec)

    async def remove(self, key: str) -> None:
        """See Backend."""
        await self._driver().remove(key)

    async def list(self, prefix: str) -> Sequence[str]:
        """See Backend."""
        return await self._driver().list(prefix)

    async def close(self) -> None:
        """See Backend."""
        for driver in self._drivers:
            await driver.close()

    def _driver(self) -> Backend:
        if self._chosen is None:
            raise BackendError("No driver was chosen.")
        return self._chosen
