"""Rendezvous hashing: every key ranks all names, so that a name that goes moves only its own keys.

The rank is the SHA-256 of the name, one zero byte and the key. It decides where the files of a workspace
live, so it may never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def rank(name: str, key: str) -> bytes:
    """How much a name wants a key; the greatest wins."""
    return hashlib.sha256(name.encode() + b"\0" + key.encode()).digest()


def choose(names: Iterable[str], key: str) -> str | None:
    """The name that a key belongs to; None without names."""
    return max(names, key=lambda name: (rank(name, key), name), default=None)
