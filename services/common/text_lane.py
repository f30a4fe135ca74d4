"""A lane past the WebSocket library for what nearly all of a connection is: whole, unfragmented text messages.

The library steps a parser, a queue and a task for every message. Here a message is cut out of the bytes as
they come and handed over at once, and what is sent is framed in one go. Everything else (the handshake,
pings, closes, fragments, binary messages, every fault of the peer) is left to the library, which gets its
bytes frame by frame and decides as it always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections.abc import Callable, Iterator
from typing import Final, cast

from websockets.asyncio.connection import Connection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import Side, State

try:
    from websockets.speedups import apply_mask
except ImportError:  # The library's wheel for other platforms is without it.
    from websockets.utils import apply_mask

_FIN: Final = 0x80
_MASKED: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0x0
_BINARY: Final = 0x2
_CLOSE: Final = 0x8
_CONTROL: Final = frozenset({0x8, 0x9, 0xA})
_WHOLE_TEXT: Final = 0x81
_MOST_IN_7_BITS: Final = 125
_IN_16_BITS: Final = 126
_IN_64_BITS: Final = 127
_MOST_IN_16_BITS: Final = 0xFFFF
_HEAD_END: Final = b"\r\n\r\n"
_KEY_BYTES: Final = 4
_KEYS_AT_ONCE: Final = 256


class FrameCutter:
    """Cuts the bytes of an open connection into frames. `masked`: the peer is the client.

    `max_bytes` is the longest payload that is taken; a longer one is the library's to refuse.
    """

    def __init__(self, *, masked: bool, max_bytes: int) -> None:
        self._masked = masked
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._needed = 0
        self._fragmented = False
        self._left = False
        self.direct = False
        """Texts may be handed over; looked at before each of them."""

    def feed(self, data: bytes) -> Iterator[str | bytes]:
        """What the data completes, in order: whole messages as text, other frames as they came.

        After a fault or a close all the rest comes as bytes. To be exhausted before it is fed again.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        at, size = 0, len(data)
        while at < size and not self._left:
            start, end = self._bounds(data, at)
            if end == 0:
                self._left = True
                break
            if end > size:
                self._held += data[at:]
                self._needed = end - at
                return
            begin, at = at, end
            text = self._text(data, begin, start, end) if self.direct else None
            if text is None:
                self._note(data[begin])
                yield data[begin:end]
            else:
                yield text
        if at < size:
            yield data[at:]

    def _bounds(self, data: bytes, at: int) -> tuple[int, int]:
        """Where the frame's payload begins and where it ends, or what of the head must come first; an end
        of 0 for what can't come now."""
        left = len(data) - at
        if left < 2:
            return 0, at + 2
        first, second = data[at], data[at + 1]
        length = second & ~_MASKED
        if first != _WHOLE_TEXT or self._fragmented:
            opcode = first & _OPCODE
            if opcode > _BINARY:
                fits = opcode in _CONTROL and first & _FIN and length <= _MOST_IN_7_BITS
            else:
                fits = (opcode == _CONTINUATION) == self._fragmented
            if first & _RESERVED or not fits:
                return 0, 0
        if bool(second & _MASKED) != self._masked:
            return 0, 0
        start = at + 2
        if length > _MOST_IN_7_BITS:
            wide = 2 if length == _IN_16_BITS else 8
            if left < 2 + wide:
                return 0, start + wide
            length = int.from_bytes(data[start : start + wide], "big")
            start += wide
            if length > self._max_bytes:
                return 0, 0
        if self._masked:
            start += _KEY_BYTES
        return start, start + length

    def _text(self, data: bytes, begin: int, start: int, end: int) -> str | None:
        if data[begin] != _WHOLE_TEXT:
            return None
        payload = data[start:end]
        if self._masked:
            payload = apply_mask(payload, data[start - _KEY_BYTES : start])
        try:
            return payload.decode()
        except UnicodeDecodeError:
            return None  # The library closes with the right code.

    def _note(self, first: int) -> None:
        opcode = first & _OPCODE
        if opcode == _CLOSE:
            self._left = True
        elif opcode <= _BINARY:
            self._fragmented = not first & _FIN


class TextLane(Connection):
    """A connection of the library, of either side, with the lane. To be named before the side's own class.

    Messages go to `on_text` once it is set, unless others before them took the library's way: binary and
    fragmented ones, and those that came before. `queued` counts those; whoever calls `recv` counts it down
    when it has dealt with the message.
    """

    heard_at: float = 0.0
    """The loop's time at which anything last came."""
    on_text: Callable[[str], None] | None = None
    queued: int = 0
    max_text_bytes: int
    _cutter: FrameCutter | None = None
    _head_tail: bytes = b""
    _masks: bool = False
    _keys: bytes = b""
    _unsent: list[bytes]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.heard_at = self.loop.time()
        self._masks = self.protocol.side is Side.CLIENT
        self._unsent = []
        super().connection_made(transport)

    # What comes in

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.heard_at = self.loop.time()
        if self._cutter is None:
            data = self._after_head(data)
            if not data:
                return
        cutter = cast(FrameCutter, self._cutter)
        cutter.direct = self._direct()
        for piece in cutter.feed(data):
            if isinstance(piece, str):
                assert self.on_text is not None
                self.on_text(piece)
            else:
                super().data_received(piece)
            cutter.direct = self._direct()

    def _after_head(self, data: bytes) -> bytes:
        """Gives the library the head of the handshake, which has no body; returns what comes after it."""
        seen = self._head_tail + data
        end = seen.find(_HEAD_END)
        if end < 0:
            self._head_tail = seen[-len(_HEAD_END) + 1 :]
            super().data_received(data)
            return b""
        end += len(_HEAD_END) - len(self._head_tail)
        self._cutter = FrameCutter(masked=not self._masks, max_bytes=self.max_text_bytes)
        super().data_received(data[:end])
        return data[end:]

    def _direct(self) -> bool:
        return self.on_text is not None and not self.queued and self.protocol.state is State.OPEN

    def process_event(self, event: object) -> None:
        """Called by the library for each event of the peer."""
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES and event.fin:
            self.queued += 1
        super().process_event(event)  # type: ignore[arg-type]

    # What goes out

    def post(self, text: str) -> int:
        """Sends a message together with the others of this turn of the loop; the bytes not written yet.

        Dropped silently when the connection is not open.
        """
        if self.protocol.state is not State.OPEN:
            return 0
        if not self._unsent:
            self.loop.call_soon(self.flush)
        payload = text.encode()
        self._unsent.append(_head(len(payload), masked=self._masks))
        if self._masks:
            key = self._key()
            self._unsent += (key, apply_mask(payload, key))
        else:
            self._unsent.append(payload)
        return self.transport.get_write_buffer_size()

    def flush(self) -> None:
        """Writes what was posted: one system call for all of it."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            if not self.transport.is_closing():
                self.transport.write(b"".join(unsent))

    def send_data(self) -> None:
        """Called by the library when it has something to write, which comes after what was posted."""
        self.flush()
        chunks = self.protocol.data_to_send()
        data = b"".join(chunks)
        if data:
            self.transport.write(data)
        if b"" in chunks and self.transport.can_write_eof():
            # The library's mark for the end of the stream; the transport may be closing already.
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    def _key(self) -> bytes:
        """A fresh masking key, which nobody may foresee (RFC 6455, 10.3)."""
        if not self._keys:
            self._keys = secrets.token_bytes(_KEY_BYTES * _KEYS_AT_ONCE)
        key, self._keys = self._keys[:_KEY_BYTES], self._keys[_KEY_BYTES:]
        return key


def _head(length: int, *, masked: bool) -> bytes:
    """The head of a frame that is a whole text message."""
    mark = _MASKED if masked else 0
    if length <= _MOST_IN_7_BITS:
        return bytes((_WHOLE_TEXT, mark | length))
    if length <= _MOST_IN_16_BITS:
        return struct.pack("!BBH", _WHOLE_TEXT, mark | _IN_16_BITS, length)
    return struct.pack("!BBQ", _WHOLE_TEXT, mark | _IN_64_BITS, length)
