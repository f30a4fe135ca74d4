"""The id by which core knows a pod sandbox's volume again (pod-mode 4.6)."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path


def volume_id(path: Path) -> str:
    """The id in the file. A file that is empty or can't be read is replaced with a new id, mode 0600.

    Raises OSError when it can't be written.
    """
    try:
        known = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        known = ""
    return known or _write(path, str(uuid.uuid4()))


def _write(path: Path, new: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".volume-id-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{new}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return new
