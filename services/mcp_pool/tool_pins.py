"""What a session's snapshot says of a server's tools, small enough to be kept beside its connection.

A tool is a digest for each member that a snapshot records; which member differs is all that is ever said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol.canonical import canonical_request
from protocol.jsjson import JsonValue
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.naming import record_tools

MEMBERS: Final = ("description", "inputSchema", "outputSchema")
ADDED: Final = "added"
REMOVED: Final = "removed"

_DIGEST_BYTES: Final = 8
_ABSENT: Final = bytes(_DIGEST_BYTES)

Pins = dict[str, bytes]
"""By the server's own name of a tool: the digests of MEMBERS in a row."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A tool that is not what the snapshot says. `member` is one of MEMBERS, ADDED or REMOVED."""

    tool: str
    member: str


def pins_of_listing(server: ServerName, tools: Iterable[Mapping[str, Any]]) -> Pins:
    """The pins of what a server lists, as a snapshot would record it; tools that it would leave out have none."""
    return pins_of_records(record_tools(server, tools, set()).records)


def pins_of_records(records: Iterable[Mapping[str, JsonValue]]) -> Pins:
    """The pins of the records of one server."""
    return {
        str(record.get("serverToolName")): b"".join(_digest(record, name) for name in MEMBERS)
        for record in records
    }


def _digest(record: Mapping[str, JsonValue], member: str) -> bytes:
    if member not in record:
        return _ABSENT
    return hashlib.blake2b(canonical_request(record[member]), digest_size=_DIGEST_BYTES).digest()


def differences(pinned: Pins, now: Pins) -> list[Difference]:
    """How the tools differ, in the order of their names."""
    found = [Difference(tool, REMOVED) for tool in pinned.keys() - now.keys()]
    found += [Difference(tool, ADDED) for tool in now.keys() - pinned.keys()]
    for tool in pinned.keys() & now.keys():
        if pinned[tool] != now[tool]:
            found += [
                Difference(tool, member)
                for index, member in enumerate(MEMBERS)
                if _part(pinned[tool], index) != _part(now[tool], index)
            ]
    return sorted(found)


def _part(digests: bytes, index: int) -> bytes:
    return digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]
