"""The sandbox-manager's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from services.common.server import SECRETS, ServerSettings, read_server_settings
from services.common.settings import Environment, SettingsError
from services.sandbox_manager.disk.watch import DiskLimits
from services.sandbox_manager.drivers import DRIVERS, ContainerSettings, DriverName
from services.sandbox_manager.local.driver import baseline

__all__ = ["SECRETS", "Settings", "SettingsError", "read_settings"]

DEFAULT_LISTEN: Final = "0.0.0.0:4430"
DEFAULT_ROOT: Final = "/harness"
KIND_SETTING: Final = "NYLORUN_SANDBOX_KIND"
DRIVER_SETTING: Final = "WHIPPLETREE_SANDBOX_DRIVER"
HOST_ROOT_SETTING: Final = "WHIPPLETREE_SANDBOX_HOST_ROOT"
PULL_SETTING: Final = "WHIPPLETREE_SANDBOX_PULL"
UID_SETTING: Final = "WHIPPLETREE_SANDBOX_UID"
DEFAULT_UID: Final = 65_431
"""In the range that Debian keeps free of accounts."""
FREE_SETTING: Final = "WHIPPLETREE_SANDBOX_DISK_FREE"
BYTES_SETTING: Final = "WHIPPLETREE_SANDBOX_DISK_BYTES"
LEAST_DISK_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """How the process listens, where workspaces lie, what runs them.

    `uid` owns the workspaces when the process is root, and is not used otherwise. `baseline` is what commands of
    the driver `local` take over from this process.
    """

    server: ServerSettings
    root: Path
    driver: DriverName = "auto"
    uid: int = DEFAULT_UID
    containers: ContainerSettings = field(default_factory=ContainerSettings)
    disk: DiskLimits = field(default_factory=DiskLimits)
    baseline: Mapping[str, str] = field(default_factory=dict)

    @property
    def workspaces(self) -> Path:
        """The folder of all workspaces."""
        return self.root / "sandboxes"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads the environment. Raises SettingsError."""
    env = Environment(environ)
    server = read_server_settings(env, DEFAULT_LISTEN)
    root = Path(env.absolute_path("NYLORUN_HARNESS_ROOT", DEFAULT_ROOT))
    driver = cast(DriverName, env.choice(DRIVER_SETTING, DRIVERS, "auto"))
    host_root = env.text(HOST_ROOT_SETTING)
    if host_root is not None and not host_root.startswith("/"):
        env.problem(f"{HOST_ROOT_SETTING} must be an absolute path.")
    containers = ContainerSettings(
        host_root=None if host_root is None else Path(host_root),
        pull=env.choice(PULL_SETTING, ("never", "missing"), "never") == "missing",
        egress_image=env.text("WHIPPLETREE_SANDBOX_EGRESS_IMAGE"),
    )
    if env.text(KIND_SETTING) == "pod":
        driver = "local"
    uid = env.integer(UID_SETTING, DEFAULT_UID, 1, 2**31 - 2)
    free_bytes = env.size(FREE_SETTING, "1GiB", 0)
    workspace_bytes = env.size(BYTES_SETTING, "5GiB", LEAST_DISK_BYTES)
    # Unset, it is less on a small volume.
    disk = DiskLimits(None if env.text(FREE_SETTING) is None else free_bytes, workspace_bytes)
    env.finish()
    return Settings(
        server=server,
        root=root,
        driver=driver,
        uid=uid,
        disk=disk,
        containers=containers,
        baseline=baseline(environ),
    )
