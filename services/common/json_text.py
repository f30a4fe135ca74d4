"""JSON text on its way into a message."""

from __future__ import annotations

from typing import Any

from whippletree.v1 import common_pb2


def set_json(message: common_pb2.Json, data: bytes) -> None:
    """Puts UTF-8 text into a message that is there already.

    protobuf takes the bytes of a text as they are; a `str` would be made of them first and written back.
    """
    text: Any = data
    message.text = text
