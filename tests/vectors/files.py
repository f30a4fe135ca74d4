"""Which files of a folder are vectors, of which kind, and their records.

The kind of a `.jsonl` file is its name without number (`agents-07.jsonl`: agents), that of a `.json` file
the name of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson

_NUMBER = re.compile(r"-\d+\Z")


def kind_of(path: Path) -> str | None:
    """The kind a file claims to be, None for a file of another format."""
    if path.suffix == ".jsonl":
        return _NUMBER.sub("", path.stem)
    if path.suffix == ".json":
        return path.resolve().parent.name
    return None


def vector_files(root: Path) -> list[Path]:
    """Every file at or below the path, in a fixed order; hidden ones are left out."""
    if root.is_file():
        return [root]
    found = (path for path in root.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(root).parts))


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """The records of a JSON lines file as (name of the line, value)."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            yield f"{path.name}:{number}", jsjson.loads(line)
