"""When a conversation is too long, and what of it would be kept (agent-engine 17b)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from gateway.engine.agent.entry_facts import Window, facts_of, floor, tokens_of
from gateway.engine.agent.entry_text import tokens_of_units
from gateway.engine.agent.transcript import Transcript
from protocol.utf16 import utf16_length

KEPT_SHARE = 0.3
"""The share of the window that stays as it is."""

MOST_KEPT_TOKENS = 20_000

LEAST_CHUNK_TOKENS = 1000
SUMMARY_ROOM_TOKENS = 1024
"""What a chunk leaves free for the words around it."""

DEFAULT_RESERVE_TOKENS = 8192
LEAST_SUMMARY_TOKENS = 256
SUMMARY_SHARE = 0.8
"""The share of the reserve that a summary may take."""


def passes_threshold(transcript: Transcript) -> bool:
    """Whether the next step should start with a compaction: it needs one and has something to compact."""
    window = transcript.window
    if window is None or transcript.estimate() <= window.size - window.reserve:
        return False
    return cut_of(transcript) is not None


def cut_of(transcript: Transcript) -> int | None:
    """Where the kept end of the transcript starts, or None when nothing comes before it.

    The end is kept up to a share of the window, and never starts with results whose calls would be gone.
    """
    entries = transcript.entries
    window = transcript.window
    size = transcript.estimate() if window is None else window.size
    most = max(1, min(MOST_KEPT_TOKENS, floor(size * KEPT_SHARE)))
    first = 1 if entries and facts_of(entries[0]).kind == "compaction" else 0
    cut = len(entries)
    kept = 0
    while cut > first:
        tokens = tokens_of(entries[cut - 1])
        if cut < len(entries) and kept + tokens > most:
            break
        kept += tokens
        cut -= 1
    while cut > first and cut < len(entries) and facts_of(entries[cut]).kind == "tool-results":
        cut -= 1
    return cut if cut > first else None


def chunks_of(texts: Iterable[str], window: Window | None) -> Iterator[list[str]]:
    """The texts in chunks that a summary call can take; all in one when no window is known."""
    if window is None:
        yield list(texts)
        return
    most = max(LEAST_CHUNK_TOKENS, window.size - window.reserve - SUMMARY_ROOM_TOKENS)
    chunk: list[str] = []
    held = 0
    for text in texts:
        tokens = tokens_of_units(utf16_length(text))
        if chunk and held + tokens > most:
            yield chunk
            chunk, held = [], 0
        chunk.append(text)
        held += tokens
    yield chunk


def summary_limit(window: Window | None) -> int:
    """The most tokens that a summary may have."""
    reserve = DEFAULT_RESERVE_TOKENS if window is None else window.reserve
    return max(LEAST_SUMMARY_TOKENS, math.floor(reserve * SUMMARY_SHARE))
