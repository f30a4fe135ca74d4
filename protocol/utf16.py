"""Strings measured and cut as JavaScript does: in UTF-16 code units (agent-engine 1)."""

from __future__ import annotations

from typing import Final

_CODEC: Final = "utf-16-le"


def utf16_length(text: str) -> int:
    """The length in UTF-16 code units; a character outside the basic plane counts two."""
    if text.isascii():
        return len(text)
    return len(text.encode(_CODEC, "surrogatepass")) // 2


def utf16_slice(text: str, start: int, end: int | None = None) -> str:
    """`text.slice(start, end)`; negative positions count from the end.

    A cut inside a surrogate pair leaves a lone half.
    """
    if text.isascii():
        return text[start:end]
    units = text.encode(_CODEC, "surrogatepass")
    if len(units) == 2 * len(text):
        return text[start:end]
    return units[2 * start : None if end is None else 2 * end].decode(_CODEC, "surrogatepass")


def utf16_truncate(text: str, length: int) -> str:
    """The first `length` code units (none for a negative length); looks at no more than that."""
    if length <= 0:
        return ""
    return utf16_slice(text[:length], 0, length)


def utf16_sort_key(text: str) -> bytes:
    """Orders strings by their UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def join_surrogates(text: str) -> str:
    """Joins halves of a pair that stand side by side, as a JavaScript string always has them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(_CODEC, "surrogatepass").decode(_CODEC, "surrogatepass")
    return text
