"""What one check of `doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`note`: it works with less; `problem`: something will not work. `fix` says what to do about it."""

    what: str
    level: Level
    found: str
    fix: str = ""
