"""What goes between the manager and a child of the emulated driver, over two pipes.

Each message is one byte for its kind, four for its length, then that many bytes. A request is one JSON
document of kind REQUEST. The child answers BEGUN before it does anything, any number of STDOUT and STDERR,
and one END, a document; the first message of its life is READY.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

REQUEST: Final = b"q"
READY: Final = b"r"
BEGUN: Final = b"b"
STDOUT: Final = b"o"
STDERR: Final = b"e"
END: Final = b"x"

_HEAD: Final = struct.Struct(">cI")
HEAD_BYTES: Final = _HEAD.size
MOST_PIECE_BYTES: Final = 1024 * 1024
"""Output is handed over in pieces of at most this size."""


def message(kind: bytes, data: bytes) -> bytes:
    """One message."""
    return _HEAD.pack(kind, len(data)) + data


def document(kind: bytes, value: Mapping[str, Any]) -> bytes:
    """One message that holds a document."""
    return message(kind, json.dumps(value).encode())


class Reader:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Adds bytes; gives the kind and content of each message that is whole now."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer, at)
            end = at + _HEAD.size + length
            if len(self._buffer) < end:
                break
            yield kind, bytes(self._buffer[at + _HEAD.size : end])
            at = end
        del self._buffer[:at]


def content_length(head: bytes) -> int:
    """How many bytes follow the head of a message."""
    return int(_HEAD.unpack(head)[1])
