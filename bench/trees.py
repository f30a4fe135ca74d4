"""Trees of files to search: the same for the same sizes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

NEEDLE: Final = "needle_in_the_tree"
"""Stands in a line of one file in a thousand, and in no other."""
_ENDINGS: Final = ("py", "txt", "md", "js")
_FOLDERS: Final = 50
_FOLDERS_EACH: Final = 20
_LINES: Final = 20_000


def plant_tree(root: Path, files: int, total_bytes: int) -> None:
    """Makes text files of equal size in 1,000 folders below `root`."""
    chance = random.Random(7)
    text = _text(chance)
    size = total_bytes // files
    for number in range(files):
        folder = root / f"p{number % _FOLDERS:02d}" / f"m{number // _FOLDERS % _FOLDERS_EACH:02d}"
        if number < _FOLDERS * _FOLDERS_EACH:
            folder.mkdir(parents=True, exist_ok=True)
        start = text.find(b"\n", chance.randrange(max(len(text) - size, 1))) + 1
        content = text[start : start + size]
        if number % 1000 == 500 or (files < 1000 and number == files // 2):
            content += f"\n{NEEDLE} here\n".encode()
        (folder / f"file_{number:06d}.{_ENDINGS[number % len(_ENDINGS)]}").write_bytes(content)


def _text(chance: random.Random) -> bytes:
    syllables = [first + second for first in "bcdfghklmnprstvz" for second in "aeiou"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(4000)]
    lines = (
        " " * chance.choice((0, 4, 8)) + " ".join(chance.choices(words, k=chance.randint(3, 10)))
        for _ in range(_LINES)
    )
    return "\n".join(lines).encode()
