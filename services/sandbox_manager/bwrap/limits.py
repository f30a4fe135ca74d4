"""The kernel's limits on what a command and each process of it may use (sandbox-manager 16.3.5)."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Final

from services.sandbox_manager.open_files import command_limits

PROCESSES: Final = 512
"""Processes and threads of one command."""
FILE_BYTES: Final = 5 * 1024**3
"""The largest file that a command may write."""
LEAST_ADDRESS_SPACE: Final = 16 * 1024**3
"""Runtimes reserve far more addresses than they use; what one process uses is bounded by its data limit."""
_MOST: Final = 2**62

Limits = Mapping[int, tuple[int, int]]
"""Soft and hard limits by the system's number of each."""
_FLAGS: Final = {
    resource.RLIMIT_CORE: "core",
    resource.RLIMIT_NPROC: "nproc",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_DATA: "data",
    resource.RLIMIT_AS: "as",
}


def limits_of(memory_mib: int) -> Limits:
    """The limits of a command."""
    memory = min(memory_mib * 1024**2, _MOST)
    single = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: PROCESSES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_AS: max(LEAST_ADDRESS_SPACE, 4 * memory),
    }
    return {number: (value, value) for number, value in single.items()} | {
        resource.RLIMIT_NOFILE: command_limits()
    }


def limiting_words(limits: Limits) -> Sequence[str]:
    """What a command begins with to set them itself, inside the sandbox."""
    words = ["/usr/bin/prlimit"]
    for number, (soft, hard) in limits.items():
        words.append(f"--{_FLAGS[number]}={soft}" if soft == hard else f"--{_FLAGS[number]}={soft}:{hard}")
    return words


def limit(process: int, limits: Limits) -> None:
    """Sets them for the first process of a sandbox, which runs nothing yet: all others inherit them.

    It saves each command the start of a program, but takes a right that root of a container often lacks.
    Processes are counted in the sandbox's own user namespace. Raises OSError.
    """
    for number, wanted in limits.items():
        _, most = resource.prlimit(process, number)
        if most == resource.RLIM_INFINITY:
            resource.prlimit(process, number, wanted)
        else:
            resource.prlimit(process, number, (min(wanted[0], most), min(wanted[1], most)))
