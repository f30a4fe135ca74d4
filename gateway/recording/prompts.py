"""Writes a model's input once: later prompts mostly repeat an earlier one and add to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from protocol.jsjson import JsonError, dumps_bytes, loads

_BASES: Final = 3
"""Earlier prompts that are looked at: the last step's, and those of a compaction or a child in between."""

_AFTER_PROMPT: Final = b'],"tools":'
"""How the text goes on behind the prompt's items (agent-engine 9)."""


class Prompts:
    """The prompts of one recording, told by their pieces, which are shared and never change."""

    def __init__(self) -> None:
        self._bases: deque[tuple[str, tuple[bytes, ...]]] = deque(maxlen=_BASES)

    def line_end(self, effect_id: str, document: bytes, parts: Sequence[bytes]) -> bytes:
        """The members `document` and, when the input is told by an earlier one, `more`.

        `document` is the effect's JSON text without `input`.
        """
        pieces = tuple(parts)
        for like, base in reversed(self._bases):
            items = _added(base, pieces)
            if items is not None:
                end = b'"document":%b,"more":{"like":%b,"prompt":[%b]}' % (
                    document,
                    dumps_bytes(like),
                    items,
                )
                break
        else:
            end = b'"document":%b,"input":%b}' % (document[:-1], b"".join(pieces))
        self._bases.append((effect_id, pieces))
        return end


def _added(base: tuple[bytes, ...], pieces: tuple[bytes, ...]) -> bytes | None:
    """The prompt items, joined, that `pieces` has behind those of `base`; None when more is different."""
    head = 0
    for one, other in zip(base, pieces, strict=False):
        if one is not other and one != other:
            break
        head += 1
    if head == len(base) == len(pieces):
        return b""  # asked for again
    tail = len(base) - head
    until = len(pieces) - tail
    if tail == 0 or until < head or base[head:] != pieces[until:]:
        return None
    if not base[head].startswith(_AFTER_PROMPT):
        return None
    added = b"".join(pieces[head:until])
    if not added:
        return added
    if added[:1] != b",":
        return None  # the earlier prompt had no items
    items = added[1:]
    try:
        loads(b"[%b]" % items)
    except JsonError:
        return None
    return items
