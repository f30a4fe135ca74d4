"""Looks for keys and tokens in everything that tests and the processes they start say.

A secret is known because a test registered it (`secret`), because it was made in this process (see hooks.py), or
by its shape: a signed JWT, a vendor's key. What is said comes in pieces; a secret that is cut between two pieces
of one source is found too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SHAPES = {
    "a signed JWT": rb"eyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",
    "a vendor's key": rb"\bsk-[A-Za-z0-9][A-Za-z0-9-]{14,}",
    "a private key": rb"-----BEGIN (?:EC |RSA |)PRIVATE KEY-----",
}
SHORTEST = 12
"""Shorter texts are no secrets: they stand in words."""
_TAIL = 1024


@dataclass(frozen=True)
class Hit:
    """Where a secret was said. It is named, never shown."""

    what: str
    source: str
    test: str

    def __str__(self) -> str:
        return f"{self.what} in {self.source} ({self.test})"


@dataclass
class Watch:
    """Everything that was said so far, as far as it matters."""

    hits: list[Hit] = field(default_factory=list)
    test: str = "before the first test"
    allowed: bool = False
    """The test at hand shows secrets on purpose."""
    looked_at: int = 0
    elsewhere: list[str] = field(default_factory=list)
    """What the watches of other processes of the same run reported."""
    _known: dict[bytes, str] = field(default_factory=dict)
    _pattern: re.Pattern[bytes] | None = None
    _tails: dict[str, bytes] = field(default_factory=dict)

    def learn(self, value: str, name: str = "a registered secret") -> None:
        """From now on this value is a secret."""
        encoded = value.encode("utf-8", "replace")
        if len(encoded) >= SHORTEST and encoded not in self._known:
            self._known[encoded] = name
            self._pattern = None

    def said(self, source: str, data: str | bytes, *, whole: bool = False) -> None:
        """Looks at a piece of what a source says; `whole`: nothing of it follows or came before."""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if not data or self.allowed:
            return
        self.looked_at += len(data)
        before = b"" if whole else self._tails.get(source, b"")
        text = before + data
        for match in self._compiled().finditer(text):
            if match.end() > len(before):
                self._note(match[0], source)
        if not whole:
            self._tails[source] = text[-_TAIL:]

    def _note(self, found: bytes, source: str) -> None:
        name = self._known.get(found)
        if name is None:
            name = next((what for what, shape in SHAPES.items() if re.match(shape, found)), "a secret")
        hit = Hit(name, source, self.test)
        if hit not in self.hits:
            self.hits.append(hit)

    def _compiled(self) -> re.Pattern[bytes]:
        if self._pattern is None:
            longest_first = sorted(self._known, key=len, reverse=True)
            self._pattern = re.compile(b"|".join((*map(re.escape, longest_first), *SHAPES.values())))
        return self._pattern

    def join(self, looked_at: int, report: list[str]) -> None:
        """Adds what the watch of another process looked at, in bytes, and reported."""
        self.looked_at += looked_at
        self.elsewhere.extend(report)

    def report(self) -> list[str]:
        """Lines for people; empty when nothing leaked."""
        return [*map(str, self.hits), *self.elsewhere]


WATCH = Watch()


def secret(value: str) -> str:
    """Registers a secret that a test uses, and gives it back."""
    WATCH.learn(value)
    return value
