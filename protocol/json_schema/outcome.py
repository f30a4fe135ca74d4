"""What a node says about a value: the validated value and the issues.

The model. A validated value replaces the original even where there are issues. An issue either aborts (`goes_on`
is not True) or lets later checks of the same node run; one with `goes_on` False stops also those checks that run
after an ordinary abort. A union whose options all fail tells the issues of the one option that did not abort.
Paths grow from the inside out: whoever looks into a member or an element puts the key in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from protocol.json_schema.js_values import NoPrimitive, type_name

Path: TypeAlias = "tuple[str | int, Path] | None"
"""Keys from the outermost in, each linked to the rest."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One reason why a value does not fit: where, a code, and the exact message (agent-engine 11)."""

    path: list[str | int]
    code: str
    message: str


class Fault:
    """An issue on its way out. Never changed once made; `under` makes another one."""

    __slots__ = ("code", "goes_on", "key", "keys", "message", "path")

    def __init__(
        self,
        code: str,
        message: str | None,
        goes_on: bool | None = None,
        path: Path = None,
        keys: list[str] | None = None,
        key: str | None = None,
    ) -> None:
        self.code = code
        self.message = message
        """None where JavaScript fails to put it into words: an object with a member `toString` is listed."""
        self.goes_on = goes_on
        self.path = path
        self.keys = keys
        """The keys of an `unrecognized_keys` issue."""
        self.key = key
        """The key of an `invalid_key` issue."""

    def under(self, key: str | int) -> Fault:
        return Fault(self.code, self.message, self.goes_on, (key, self.path), self.keys, self.key)

    def issue(self) -> Issue:
        """The issue for the caller. Raises `NoPrimitive` where it has no message."""
        if self.message is None:
            raise NoPrimitive
        path: list[str | int] = []
        rest = self.path
        while rest is not None:
            path.append(rest[0])
            rest = rest[1]
        return Issue(path, self.code, self.message)


class Outcome:
    """A value and its issues. `aborted` marks one that a guard refused although its issues would go on."""

    __slots__ = ("aborted", "faults", "value")

    def __init__(self, value: Any, faults: list[Fault], *, aborted: bool = False) -> None:
        self.value = value
        self.faults = faults
        self.aborted = aborted

    def is_aborted(self) -> bool:
        return self.aborted or aborts(self.faults)


def put_into_words(faults: Iterable[Fault]) -> None:
    """What the peer does with the issues of a refused option or key although it never shows them."""
    for fault in faults:
        if fault.message is None:
            raise NoPrimitive


def aborts(faults: Iterable[Fault]) -> bool:
    """Whether ordinary later checks are skipped."""
    return any(fault.goes_on is not True for fault in faults)


def stops(faults: Iterable[Fault]) -> bool:
    """Whether even the size checks are skipped."""
    return any(fault.goes_on is False for fault in faults)


def wrong_type(expected: str, value: object, *, goes_on: bool | None = None) -> Fault:
    message = f"Invalid input: expected {expected}, received {type_name(value)}"
    return Fault("invalid_type", message, goes_on=goes_on)


def unrecognized(keys: list[str], *, goes_on: bool | None) -> Fault:
    noun = "key" if len(keys) == 1 else "keys"
    quoted = ", ".join(f'"{key}"' for key in keys)
    return Fault("unrecognized_keys", f"Unrecognized {noun}: {quoted}", goes_on=goes_on, keys=keys)
