"""The limits on open files: high for the manager, what programs expect for commands."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

WANTED: Final = 16_384
"""A running command takes ten descriptors of the manager, a connection of its proxy two."""
COMMAND_SOFT: Final = 1024
"""What programs expect that still use select()."""
COMMAND_HARD: Final = 65_536


def raise_open_files() -> None:
    """Raises this process's soft limit as far as it may, up to 16,384."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def command_limits() -> tuple[int, int]:
    """The soft and hard limit of a command."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = COMMAND_HARD if hard == resource.RLIM_INFINITY else min(COMMAND_HARD, hard)
    return min(COMMAND_SOFT, most), most
