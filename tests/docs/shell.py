"""The commands of `console` and `bash` blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.pages import Block, Page

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=.*", re.DOTALL)
_ENDS = frozenset({"|", "||", "&&", "&", ";", "(", ")", "<", ">", ">>"})


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: the variables set before it, and its words."""

    place: str
    assigned: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The program's name without its folder."""
        return self.words[0].rpartition("/")[2]


def commands(page: Page) -> Iterator[Command]:
    """Every simple command that a page tells people to type."""
    for block in page.blocks:
        if block.language in ("console", "bash"):
            for text, line in _typed(block):
                yield from _simple(text, f"{page.name}:{line}")


def _typed(block: Block) -> Iterator[tuple[str, int]]:
    """The command lines: after `$ ` in console blocks, everything in bash blocks. A line that ends in a
    backslash, a pipe or within quotes goes on."""
    held, start = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        if held:
            held += "\n" + line
        elif block.language == "bash":
            held, start = line, number
        elif line.startswith("$ "):
            held, start = line[2:], number
        if held and not held.endswith(("\\", "|")) and _whole(held):
            yield held, start
            held = ""
    assert not held, f"line {start}: the command does not end"


def _whole(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _simple(text: str, place: str) -> Iterator[Command]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if word in _ENDS or set(word) <= set("|&;()<>"):
            if words:
                yield _command(words, place)
            words = []
            skip = word in ("<", ">", ">>")
        elif skip:
            skip = False  # a file's name
        else:
            words.append(word)


def _command(words: list[str], place: str) -> Command:
    assigned = []
    while words and (match := _ASSIGNED.fullmatch(words[0])):
        assigned.append(match[1])
        words = words[1:]
    if words and words[0] in ("export", "env"):
        return _command(words[1:], place) if words[1:] else Command(place, tuple(assigned), ("true",))
    return Command(place, tuple(assigned), tuple(words) or ("true",))
