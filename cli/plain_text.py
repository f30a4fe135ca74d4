"""Text of models, tools and people for a terminal: nothing in it moves the cursor or changes colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

REPLACEMENT: Final = "\ufffd"
_KEPT: Final = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the joiners that scripts and emoji need."""


def plain(text: str) -> str:
    """The text with every control and format character replaced; line ends stay, CR LF becomes LF."""
    unified = text.replace("\r\n", "\n")
    return "".join(char if char in _KEPT or char.isprintable() else REPLACEMENT for char in unified)


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` characters, an ellipsis at its end where it was cut."""
    line = " ".join(plain(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def as_text(value: Any) -> str:
    """A JSON value for people: texts as they are, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns under their titles."""
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]
