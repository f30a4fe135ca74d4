"""Which host names a workspace may reach (sandbox-manager 3 and 16.3). No I/O.

Rules are kept as a trie of labels from the right, so that exact names and suffixes are answered by one walk.
"""

from __future__ import annotations

import re
from typing import Final

from services.sandbox_manager.network import Network

LONGEST_NAME: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def plain_host(text: str) -> str | None:
    """A host name in lower case without the dot of the root; None for what is none.

    An address is no host name, in none of the ways in which a system reads one: a name whose last label is a
    number would be an IPv4 address.
    """
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > LONGEST_NAME or len(labels) < 2:
        return None
    if not all(_LABEL.fullmatch(label) for label in labels) or _NUMBER.fullmatch(labels[-1]):
        return None
    return name


class _Node:
    __slots__ = ("below", "here", "under")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.here = False  # this very name
        self.under = False  # every name that ends with it


class HostRules:
    """The names of one spec. With the preset `open` every host name fits."""

    def __init__(self, network: Network) -> None:
        self.any_host = network.preset == "open"
        self._top = _Node()
        for host in network.hosts:
            self._node(host).here = True
        for suffix in network.suffixes:
            self._node(suffix.removeprefix(".")).under = True

    @property
    def closed(self) -> bool:
        """No host at all fits."""
        return not (self.any_host or self._top.below)

    def allows(self, host: str) -> bool:
        """Whether a name in the form of `plain_host` fits."""
        if self.any_host:
            return True
        node: _Node | None = self._top
        labels = host.split(".")
        for index, label in enumerate(reversed(labels)):
            node = node.below.get(label) if node is not None else None
            if node is None:
                return False
            if node.under and index + 1 < len(labels):
                return True
        return node is not None and node.here

    def _node(self, name: str) -> _Node:
        node = self._top
        for label in reversed(name.split(".")):
            node = node.below.setdefault(label, _Node())
        return node
