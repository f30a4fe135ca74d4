"""Keeps what a process knows from the children it starts (operations 12.4)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

_PR_SET_DUMPABLE = 4


def forget_secrets(names: Iterable[str]) -> None:
    """Removes variables from this process's environment, so that no child inherits them."""
    for name in names:
        os.environ.pop(name, None)


def set_not_dumpable() -> bool:
    """Closes /proc/<pid>/environ and memory to processes of the same user; False where it can't."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
