"""Checks of the machine: Python, programs, namespaces, container engine, open files, disk, clock."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cli.doctor.finding import Finding
from services.common.child_start import death_signal_prefix
from services.sandbox_manager.bwrap.binary import find_bwrap
from services.sandbox_manager.bwrap.driver import BwrapBackend
from services.sandbox_manager.contract import BackendError, Probe
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.drivers import workspaces_identity
from services.sandbox_manager.settings import DEFAULT_UID

LEAST_PYTHON: Final = (3, 11)
FILES_WANTED: Final = 4 * 512
"""Four descriptors for each of the MCP connections that a pool holds by default."""
FREE_BYTES_WANTED: Final = 2**30
EARLIEST: Final = 1_760_000_000
"""Seconds since 1970; a clock before it was never set. Certificates and tokens would not be valid."""
_SOCKETS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")


def machine(environ: Mapping[str, str], folder: Path) -> Iterator[Finding]:
    """All of them; `folder` is where state would be kept."""
    yield python()
    yield sandbox(environ)
    yield program("ripgrep", "rg", environ, "grep over many files is slower", "apt install ripgrep")
    yield gnu_grep(environ)
    yield parent_death()
    yield engine(environ)
    yield open_files()
    yield disk(folder)
    yield clock()


def python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        return Finding("Python", "problem", version, "Install Python 3.11 or newer.")
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def sandbox(environ: Mapping[str, str]) -> Finding:
    """Whether bubblewrap and the namespaces that it needs are there."""
    try:
        found = asyncio.run(_probe(environ.get("PATH")))
    except (BackendError, OSError) as error:
        found = Probe("virtual", False, "process", str(error))
    if found.available:
        return Finding(
            "bubblewrap and namespaces", "ok", "; ".join(filter(None, (found.version, found.reason)))
        )
    return Finding(
        "bubblewrap and namespaces",
        "note",
        f"{found.reason}. Agents get the emulated shell: it knows common commands and runs no programs.",
        "apt install bubblewrap; in a container user namespaces must be allowed, too (docs/security.md).",
    )


async def _probe(path: str | None) -> Probe:
    with tempfile.TemporaryDirectory(prefix="whippletree-doctor-") as folder:
        disk = WorkspaceDisk(Path(folder), workspaces_identity(DEFAULT_UID))
        backend = BwrapBackend(disk, find_bwrap(path))
        try:
            await disk.prepare()
            return await backend.probe()
        finally:
            await backend.close()


def program(what: str, name: str, environ: Mapping[str, str], without: str, fix: str) -> Finding:
    """A program that is useful, not needed."""
    path = shutil.which(name, path=environ.get("PATH"))
    return Finding(what, "note", f"not found: {without}.", fix) if path is None else Finding(what, "ok", path)


def gnu_grep(environ: Mapping[str, str]) -> Finding:
    """The sandbox's grep tool runs GNU's."""
    return program(
        "grep", "grep", environ, "the grep tool of real sandboxes needs GNU grep", "apt install grep"
    )


def parent_death() -> Finding:
    """Whether children of a killed process end with it."""
    if death_signal_prefix():
        return Finding("parent-death signal", "ok", "setpriv of util-linux")
    return Finding(
        "parent-death signal",
        "note",
        "setpriv of util-linux was not found: children of a killed process may live on.",
        "apt install util-linux",
    )


def engine(environ: Mapping[str, str]) -> Finding:
    """Whether a container engine listens; only the container driver and compose need one."""
    named = environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        return Finding("container engine", "ok", f"{named} (DOCKER_HOST; not asked)")
    for path in (named.removeprefix("unix://"),) if named else _SOCKETS:
        if _listens(path):
            return Finding("container engine", "ok", path)
    return Finding(
        "container engine",
        "note",
        "none listens: `docker compose up` and the container driver need one, nothing else does.",
        "Install Docker or Podman, or set DOCKER_HOST.",
    )


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(path)
        except (OSError, ValueError):
            return False
    return True


def open_files() -> Finding:
    """The most files that a process may open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= FILES_WANTED:
        return Finding("open files", "ok", "no limit" if most == resource.RLIM_INFINITY else f"up to {most}")
    return Finding(
        "open files",
        "note",
        f"at most {most}: 512 MCP connections want {FILES_WANTED}.",
        f"Raise the hard limit (ulimit -Hn {FILES_WANTED}), or lower WHIPPLETREE_MCP_MAX_CONNECTIONS.",
    )


def disk(folder: Path) -> Finding:
    """Room where workspaces and the database would be."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free at {place}"
    if not os.access(place, os.W_OK):
        return Finding("disk", "problem", f"{place} can't be written.", "Name another WHIPPLETREE_STATE_DIR.")
    if free < FREE_BYTES_WANTED:
        return Finding("disk", "problem", f"{text}; commands stop below 1 GiB.", "Free some space.")
    return Finding("disk", "ok", text)


def clock() -> Finding:
    """A clock that was never set."""
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST:
        return Finding("clock", "problem", text, "Set the clock: tokens and certificates depend on it.")
    return Finding("clock", "ok", text)
