"""What the container of a workspace is like: the engine's create document, as data (sandbox-manager 16.2).

It has no network, no capability, a system that can't be written, and the workspace's two folders. Its first
process does nothing but stay, so that commands can be started in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from protocol.jsjson import dumps
from services.sandbox_manager.bwrap.flags import FILE_BYTES, PROCESSES, SHARED_MEMORY_BYTES
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.paths import WORKSPACE
from services.sandbox_manager.specs import BackendSpec

ROOT_LABEL: Final = "whippletree.root"
TENANT_LABEL: Final = "whippletree.tenant"
KEY_LABEL: Final = "whippletree.key"
PLAN_LABEL: Final = "whippletree.plan"

ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_STAY: Final = "trap 'exit 0' TERM; while :; do sleep 86400 & wait $!; done"
RESTING_PROCESSES: Final = 3
"""Of a container in which no command runs: the engine's init, the shell that stays, its sleep."""


@dataclass(frozen=True, slots=True)
class HostFolders:
    """A workspace's folders by the names that the engine's host has for them."""

    workspace: str
    tmp: str


def tenant_of(key: str) -> str:
    """The tenant that a key belongs to: what stands between `nylorun-` and the last parts."""
    return key.removeprefix("nylorun-").rpartition("-")[0].removesuffix("-sbx")


def container_name(root_id: str, key: str) -> str:
    """The name of a workspace's container: one engine may serve several roots."""
    return f"whippletree-{root_id[:12]}-{key}"


def create_document(
    spec: BackendSpec, folders: HostFolders, *, root_id: str, identity: Identity
) -> dict[str, Any]:
    """The body of the engine's create request."""
    memory = spec.memory_mib * 1024**2
    document: dict[str, Any] = {
        "Image": spec.image,
        "Entrypoint": ["/bin/sh", "-c", _STAY],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
        "Hostname": "sandbox",
        "User": f"{identity.uid}:{identity.gid}",
        "WorkingDir": WORKSPACE,
        "NetworkDisabled": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Binds": [f"{folders.workspace}:{WORKSPACE}", f"{folders.tmp}:/tmp"],
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "Init": True,
            "PidsLimit": PROCESSES,
            "NanoCpus": spec.cpus * 10**9,
            "Memory": memory,
            "MemorySwap": memory,
            "ShmSize": SHARED_MEMORY_BYTES,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": FILE_BYTES, "Hard": FILE_BYTES},
            ],
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
        },
    }
    digest = hashlib.sha256(dumps(document).encode()).hexdigest()
    document["Labels"] = {
        ROOT_LABEL: root_id,
        TENANT_LABEL: tenant_of(spec.key),
        KEY_LABEL: spec.key,
        PLAN_LABEL: digest,
    }
    return document


def command_words(shell: str, command: str) -> list[str]:
    """How a command is started: with the four variables and none that the image brings."""
    return [*_starter(shell), "-c", command]


def script_words(shell: str, path: str) -> list[str]:
    """How a command is started that is too long for an argument and stands in a file."""
    return [*_starter(shell), path]


def _starter(shell: str) -> list[str]:
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), shell]
