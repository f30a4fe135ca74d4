"""The project's pages as data: headings, tables, code blocks and links of a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_HEADING = re.compile(r"(#{1,6}) (.+?)\s*$")
_FENCE = re.compile(r"(```+)(\S*)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block: its language (the word after the fence), its text, its first line's number."""

    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with the heading it stands under and the table's own header."""

    section: str
    header: tuple[str, ...]
    cells: tuple[str, ...]
    line: int


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.lines = path.read_text("utf-8").splitlines()
        self.blocks: list[Block] = []
        self.prose: list[tuple[int, str]] = []
        self._split()

    def _split(self) -> None:
        fence, language, start, held = "", "", 0, list[str]()
        for number, line in enumerate(self.lines, 1):
            match = _FENCE.fullmatch(line.lstrip())
            if not fence and match:
                fence, language, start, held = match[1], match[2], number + 1, []
            elif fence and line.strip() == fence:
                self.blocks.append(Block(language, "\n".join(held) + "\n", start))
                fence = ""
            elif fence:
                held.append(line)
            else:
                self.prose.append((number, line))
        assert not fence, f"{self.name}: a code block does not end"

    def headings(self) -> list[str]:
        """The texts of the headings."""
        return [match[2] for _, line in self.prose if (match := _HEADING.match(line))]

    def anchors(self) -> set[str]:
        """What links to headings may name, as GitHub makes them."""
        found: dict[str, int] = {}
        anchors = set()
        for heading in self.headings():
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            count = found.get(anchor, 0)
            found[anchor] = count + 1
            anchors.add(f"{anchor}-{count}" if count else anchor)
        return anchors

    def links(self) -> Iterator[tuple[int, str]]:
        """Every link with its line; links in code spans are none."""
        for number, line in self.prose:
            for match in _LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                yield number, match[1]

    def rows(self) -> list[Row]:
        """The rows of all tables."""
        found: list[Row] = []
        section, header = "", tuple[str, ...]()
        before: tuple[str, ...] = ()
        for number, line in self.prose:
            if match := _HEADING.match(line):
                section, header = match[2], ()
            elif not line.startswith("|"):
                header, before = (), ()
            else:
                cells = tuple(cell.strip() for cell in _CELL.split(line)[1:-1])
                if set("".join(cells)) <= set("-: "):
                    header = before
                elif header:
                    assert len(cells) == len(header), f"{self.name}:{number}: another number of cells"
                    found.append(Row(section, header, cells, number))
                before = cells
        return found


def code_of(cell: str) -> list[str]:
    """The code spans of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def pages() -> list[Page]:
    """Every page that people read first, and everything under docs/."""
    first = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    examples = sorted((ROOT / "examples").rglob("*.md"))
    return [Page(path) for path in (*first, *sorted(DOCS.rglob("*.md")), *examples)]
