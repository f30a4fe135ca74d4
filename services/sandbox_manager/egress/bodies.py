"""Passes on exactly the body of a plain request, and not a byte of what a client sends after it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from services.sandbox_manager.egress.heads import CHUNKED, BadRequest

PIECE_BYTES: Final = 64 * 1024
MOST_LINE_BYTES: Final = 1024
"""Of the line before a chunk, and of one trailer."""
MOST_TRAILERS: Final = 100
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e]*)?")

Read = Callable[[int], Awaitable[bytes]]
"""At most so many bytes; none at the end."""
Write = Callable[[bytes], Awaitable[None]]


class BodyReader:
    """The client's bytes after a head; `early` came together with it."""

    def __init__(self, early: bytes, read: Read) -> None:
        self._early = early
        self._read = read

    async def pass_on(self, body: int, write: Write) -> None:
        """Passes on a body of so many bytes, or CHUNKED. Raises BadRequest when it ends too early."""
        if body != CHUNKED:
            await self._bytes(body, write)
            return
        while size := await self._chunk_size():
            await write(b"%x\r\n" % size)
            await self._bytes(size, write)
            if await self._line():
                raise BadRequest(400, "A chunk of the request's body is longer than it says.")
            await write(b"\r\n")
        for _ in range(MOST_TRAILERS):
            if not await self._line():  # trailers are left out
                await write(b"0\r\n\r\n")
                return
        raise BadRequest(400, "The request's body has too many trailers.")

    async def _chunk_size(self) -> int:
        match = _CHUNK.fullmatch(await self._line())
        if match is None:
            raise BadRequest(400, "A chunk of the request's body can't be read.")
        return int(match[1], 16)

    async def _bytes(self, count: int, write: Write) -> None:
        while count:
            data = await self._some(min(count, PIECE_BYTES))
            await write(data)
            count -= len(data)

    async def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\r\n"):
            line += await self._some(1)
            if len(line) > MOST_LINE_BYTES:
                raise BadRequest(400, "A line of the request's body is too long.")
        return bytes(line[:-2])

    async def _some(self, most: int) -> bytes:
        if self._early:
            data, self._early = self._early[:most], self._early[most:]
            return data
        data = await self._read(most)
        if not data:
            raise BadRequest(400, "The request's body ends too early.")
        return data
