"""A model call's request as its bytes on the wire.

A long conversation is megabytes in thousands of pieces. A protobuf message would take them as one text, which
is joined, decoded, copied into the message and copied out of it again: a hundred times what joining costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from whippletree.v1 import common_pb2, model_executor_pb2

_LENGTH_DELIMITED: Final = 2
_CALL_TAG: Final = bytes(
    (model_executor_pb2.ModelCallRequest.DESCRIPTOR.fields_by_name["call"].number << 3 | _LENGTH_DELIMITED,)
)
_TEXT_TAG: Final = bytes((common_pb2.Json.DESCRIPTOR.fields_by_name["text"].number << 3 | _LENGTH_DELIMITED,))


class WrittenCall:
    """A `ModelCallRequest` whose `call` is written from the pieces of its document.

    `request` is the rest of it, without `call`; the pieces are UTF-8. In the wire format a message is its
    fields one after the other, in any order.
    """

    __slots__ = ("_wire", "effect")

    def __init__(self, request: model_executor_pb2.ModelCallRequest, parts: Sequence[bytes]) -> None:
        self.effect = request.effect
        size = sum(map(len, parts))
        text = _TEXT_TAG + _varint(size)
        head: Iterable[bytes] = (request.SerializeToString(), _CALL_TAG, _varint(len(text) + size), text)
        self._wire = b"".join(chain(head, parts))

    def SerializeToString(self) -> bytes:
        """The request's bytes; named as protobuf's own."""
        return self._wire


def _varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
