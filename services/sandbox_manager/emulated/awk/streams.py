"""What an awk program reads and writes besides its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

_STDOUT: Final = frozenset({"/dev/stdout", "-"})


class Streams:
    """Output is gathered, and handed on when the program is over; files are read whole.

    `read` gives a file's content and raises OSError.
    """

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._lines: dict[str, Iterator[str]] = {}
        self._open: dict[tuple[str, str], list[str]] = {}
        self._closed: list[tuple[str, str, str]] = []
        self.stdout: list[str] = []
        self.stderr: list[str] = []

    def write(self, sign: str, name: str, text: str) -> None:
        """`print > name`, `>> name` or `| name`."""
        if sign != "|" and name in _STDOUT:
            self.stdout.append(text)
        elif sign != "|" and name == "/dev/stderr":
            self.stderr.append(text)
        else:
            self._open.setdefault((sign, name), []).append(text)

    def line(self, name: str) -> str | None:
        """The next line of a file. Raises OSError."""
        if name not in self._lines:
            content = self._content(name)
            self._lines[name] = iter(content.removesuffix("\n").split("\n") if content else ())
        return next(self._lines[name], None)

    def _content(self, name: str) -> str:
        mine = [(sign, text) for sign, written, text in self._closed if written == name and sign != "|"]
        before = "" if mine and mine[0][0] == ">" else self._read(name)
        return before + "".join(text for _, text in mine)

    def close(self, name: str) -> float:
        """Ends a file or command: the next use begins afresh."""
        ended = self._lines.pop(name, None) is not None
        for sign, opened in list(self._open):
            if opened == name:
                self._closed.append((sign, opened, "".join(self._open.pop((sign, opened)))))
                ended = True
        return 0.0 if ended else -1.0

    def written(self) -> list[tuple[str, str, str]]:
        """All that was written to files and commands, in order: the sign, the name, the text."""
        for _, name in list(self._open):
            self.close(name)
        return self._closed
