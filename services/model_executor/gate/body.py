"""A request's body that knows when the socket has taken all of it (model-executor 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

_PIECE: Final = 64 * 1024


class SentBody(payload.Payload):
    """JSON bytes, written in pieces of 64 KiB.

    `handed_over` is true once the operating system has all of them: from then on a lost connection may have
    been billed. `progress` is called after each piece.
    """

    _autoclose = True

    def __init__(self, content: bytes, progress: Callable[[bool], None]) -> None:
        super().__init__(content, content_type="application/json")
        self._content = content
        self._size = len(content)
        self._progress = progress
        self.handed_over = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text; asked for by aiohttp's own error messages only."""
        return self._content.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Writes everything and waits until the socket's buffer is empty."""
        transport = getattr(writer, "transport", None)
        if transport is not None:
            # A drain then waits for an empty buffer, not for one that is short enough.
            transport.set_write_buffer_limits(high=0)
        view = memoryview(self._content)
        for start in range(0, len(view), _PIECE):
            await writer.write(bytes(view[start : start + _PIECE]))
            await writer.drain()
            self._progress(False)
        self.handed_over = True
        self._progress(True)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """The same: the length is always the whole one."""
        await self.write(writer)
