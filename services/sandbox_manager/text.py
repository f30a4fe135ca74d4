"""Cutting and quoting of what commands and files give (sandbox-manager 9.1). Lengths are UTF-16 units."""

from __future__ import annotations

from typing import Final

from protocol.utf16 import utf16_length, utf16_slice

STREAM_UNITS: Final = 30_000
"""What a model sees of one stream."""
LINE_UNITS: Final = 2_000
"""What a model sees of one line."""
ELLIPSIS: Final = "…"


def decode(data: bytes) -> str:
    """Bytes as text: UTF-8, U+FFFD for what isn't; a byte order mark and carriage returns stay."""
    return data.decode("utf-8", "replace")


def encode(text: str) -> bytes:
    """Text as UTF-8; a lone half of a surrogate pair becomes U+FFFD, as JavaScript writes it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def head(text: str, units: int) -> str:
    """The first `units` units, one less where the cut would fall inside a surrogate pair."""
    if len(text) * 2 <= units:
        return text
    return _without_last_half(utf16_slice(text[:units], 0, units))


def tail(text: str, units: int) -> str:
    """The last `units` units, one less where the cut would fall inside a surrogate pair."""
    if len(text) * 2 <= units:
        return text
    part = text[-units:]
    cut = utf16_slice(part, max(utf16_length(part) - units, 0))
    return cut[1:] if cut and "\udc00" <= cut[0] <= "\udfff" else cut


def cut_line(line: str) -> str:
    """A line of at most 2,000 units, with an ellipsis when something was cut."""
    if len(line) <= LINE_UNITS and (line.isascii() or utf16_length(line) <= LINE_UNITS):
        return line
    return head(line, LINE_UNITS) + ELLIPSIS


def cut_middle(text: str) -> tuple[str, bool]:
    """A text of more than 30,000 units without its middle, and whether anything was left out."""
    length = len(text) if text.isascii() else utf16_length(text)
    if length <= STREAM_UNITS:
        return text, False
    marker = f"\n{ELLIPSIS} [{length - STREAM_UNITS} characters omitted] {ELLIPSIS}\n"
    return head(text, STREAM_UNITS // 2) + marker + tail(text, STREAM_UNITS // 2), True


def quote(text: str) -> str:
    """One word for a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _without_last_half(text: str) -> str:
    return text[:-1] if text and "\ud800" <= text[-1] <= "\udbff" else text
