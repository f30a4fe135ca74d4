"""What the container of a workspace is like: the engine's create document, as data (sandbox-manager 16.2).

It has no network, no capability, a system that can't be written, and the workspace's two folders. Its first
process does nothing but stay, so that commands can be started in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.jsjson import dumps
from services.sandbox_manager.bwrap.flags import (
    ENVIRONMENT,
    PROXY_VARIABLES,
    SHARED_MEMORY_BYTES,
)
from services.sandbox_manager.bwrap.limits import FILE_BYTES, PROCESSES
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.paths import WORKSPACE
from services.sandbox_manager.specs import BackendSpec

ROOT_LABEL: Final = "whippletree.root"
TENANT_LABEL: Final = "whippletree.tenant"
KEY_LABEL: Final = "whippletree.key"
PLAN_LABEL: Final = "whippletree.plan"

FORWARDER_BYTES: Final = 128 * 1024**2
"""Memory of the container that forwards to the proxy."""
_SYSTEM_CALLS: Final = dumps(json.loads(Path(__file__).with_name("seccomp.json").read_text("ascii")))
"""The filter of system calls. Engines have one of their own, which in older ones lets io_uring through."""
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
    spec: BackendSpec,
    folders: HostFolders,
    *,
    root_id: str,
    identity: Identity,
    forwarder_id: str | None = None,
) -> dict[str, Any]:
    """The body of the engine's create request.

    With a forwarder the container has that one's network, which is as closed but for the forwarder's port.
    """
    memory = spec.memory_mib * 1024**2
    document = _document(
        image=spec.image,
        start=["/bin/sh", "-c", _STAY],
        binds=[f"{folders.workspace}:{WORKSPACE}", f"{folders.tmp}:/tmp"],
        identity=identity,
        memory=memory,
    )
    document["WorkingDir"] = WORKSPACE
    host = document["HostConfig"]
    host["NanoCpus"] = spec.cpus * 10**9
    if forwarder_id is None:
        document["Hostname"] = "sandbox"
    else:
        host["NetworkMode"] = f"container:{forwarder_id}"
    return _labelled(document, spec.key, root_id)


def forwarder_document(
    key: str, image: str, folder: str, source: str, *, root_id: str, identity: Identity
) -> dict[str, Any]:
    """The body for the container whose network a workspace shares: it forwards to the proxy's socket."""
    document = _document(
        image=image,
        start=["python3", "-I", "-S", "-c", source],
        binds=[f"{folder}:/run/egress:ro"],
        identity=identity,
        memory=FORWARDER_BYTES,
    )
    document["Hostname"] = "sandbox"
    return _labelled(document, key, root_id)


def _document(
    *, image: str, start: list[str], binds: list[str], identity: Identity, memory: int
) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": start,
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
        "User": f"{identity.uid}:{identity.gid}",
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Binds": binds,
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={_SYSTEM_CALLS}"],
            "ReadonlyRootfs": True,
            "Init": True,
            "PidsLimit": PROCESSES,
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


def _labelled(document: dict[str, Any], key: str, root_id: str) -> dict[str, Any]:
    digest = hashlib.sha256(dumps(document).encode()).hexdigest()
    document["Labels"] = {
        ROOT_LABEL: root_id,
        TENANT_LABEL: tenant_of(key),
        KEY_LABEL: key,
        PLAN_LABEL: digest,
    }
    return document


def starter_words(shell: str, *, way_out: bool) -> list[str]:
    """What begins every command: the four variables (with a way out also the proxy's) and none that the image
    brings."""
    variables = {**ENVIRONMENT, **(PROXY_VARIABLES if way_out else {})}
    start = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    return [*start, "/bin/sh", "-c", _IN_A_GROUP, "sh", shell]


_IN_A_GROUP: Final = (
    'command -v setsid >/dev/null || exec "$@"; exec 3>&2 2>/dev/null; setsid "$@" 2>&3 3>&- & '
    'p=$!; wait "$p"; c=$?; kill -9 "-$p"; exit "$c"'
)
"""Runs a command in a process group of its own and ends the group with it: what is left in the background
would hold the streams, and with them the call. Its own complaints go nowhere."""
