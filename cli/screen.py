"""The terminal of `chat`: what was said, in colours, and a line that says what is being waited for."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final, TextIO

from cli.event_lines import Kind, Said

TICK_S: Final = 1.0
"""How often the line that says what is being waited for is written again; nothing shorter is shown."""
_COLOURS: Final[dict[Kind, str]] = {
    "answer": "0",
    "thought": "2;3",
    "call": "36",
    "result": "32",
    "problem": "31",
    "note": "2",
}
_MARKS: Final[dict[Kind, str]] = {
    "answer": "",
    "thought": "~ ",
    "call": "> ",
    "result": "< ",
    "problem": "! ",
    "note": "- ",
}


class Screen:
    """Writes to one stream (stdout); colours and the waiting line only where it is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._is_terminal = self._stream.isatty()
        self._colour = self._is_terminal and not os.environ.get("NO_COLOR")
        self._waits = False

    def show(self, one: Said) -> None:
        """Prints one thing, above the waiting line."""
        mark, indent = _MARKS[one.kind], "  "
        lines = one.text.splitlines() or [""]
        text = "\n".join((mark + lines[0], *(indent * bool(mark) + line for line in lines[1:])))
        self.line(f"\x1b[{_COLOURS[one.kind]}m{text}\x1b[0m" if self._colour else text)

    def line(self, text: str = "") -> None:
        """Prints text as it is."""
        self._clear()
        print(text, file=self._stream, flush=True)

    async def waiting(self, what: str) -> None:
        """Shows for how long it has been waited, once a second, until it is cancelled."""
        if not self._is_terminal:
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._clear()
                self._stream.write(f"{what} {clock() - began:.0f} s")
                self._stream.flush()
                self._waits = True
        finally:
            self._clear()

    def _clear(self) -> None:
        if self._waits:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._waits = False
