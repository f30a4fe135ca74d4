"""JSON text made once and used for hashing and for sending.

Two texts of a value are needed: the canonical one that is hashed, and the one that is sent, which keeps the
order of members where people and models chose it (arguments, metadata, references, schemas). Structure that
is ours is written in canonical order in both, so nearly always they are the same bytes, held once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, overload

from protocol.canonical import canonical_request
from protocol.jsjson import dumps_bytes


@dataclass(frozen=True, slots=True)
class Fragment:
    """A value's canonical text and the text that is sent; the same object when they are equal."""

    canonical: bytes
    wire: bytes


def fragment(value: Any, *, plain: bool = False) -> Fragment:
    """Both texts of a value. `plain` as in `protocol.jsjson.dumps`."""
    canonical = canonical_request(value, plain=plain)
    wire = dumps_bytes(value, plain=plain)
    return shared(canonical, wire)


def shared(canonical: bytes, wire: bytes) -> Fragment:
    """A fragment that holds equal texts once."""
    canonical = kept(canonical)
    return Fragment(canonical, canonical if canonical == wire else kept(wire))


def quote(text: str) -> bytes:
    """A string as JSON."""
    return dumps_bytes(text, plain=True)


def kept(text: bytes) -> bytes:
    """The same bytes in a buffer of their own size, for texts that outlive the moment.

    orjson hands its results out in the 4 KiB buffer it wrote them into.
    """
    return bytes(memoryview(text))


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """An object of members whose values are canonical text. Names are ASCII and need no escapes."""
    return b"{" + _joined(members, sorted(members)) + b"}"


def around_member(members: Mapping[str, bytes], hole: str) -> tuple[bytes, bytes]:
    """The canonical text before and after the value of the member `hole` of such an object."""
    before = [name for name in sorted(members) if name < hole]
    after = [name for name in sorted(members) if name > hole]
    head = b"{" + _joined(members, before) + (b"," if before else b"") + b'"%b":' % hole.encode()
    return head, (b"," if after else b"") + _joined(members, after) + b"}"


def _joined(members: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    return b",".join([b'"%b":%b' % (name.encode(), members[name]) for name in names])


class Spliced(Sequence[bytes]):
    """Pieces before, the first `count` pieces of a list that only ever grows, and pieces after.

    Costs nothing per piece until somebody goes over it.
    """

    __slots__ = ("_after", "_before", "_count", "_grown", "_skip")

    def __init__(
        self, before: tuple[bytes, ...], grown: list[bytes], after: tuple[bytes, ...], *, skip: int = 0
    ) -> None:
        self._before = before
        self._grown = grown
        self._skip = skip
        self._count = len(grown)
        self._after = after

    def __iter__(self) -> Iterator[bytes]:
        return chain(self._before, islice(self._grown, self._skip, self._count), self._after)

    def __len__(self) -> int:
        return len(self._before) + self._count - self._skip + len(self._after)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return tuple(self)[index]
