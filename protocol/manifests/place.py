"""Where in a manifest a check stands, and the one error a manifest is refused with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn

_QUOTE_LIMIT: Final = 60
_UNPRINTABLE: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


class ManifestInvalid(ValueError):
    """A manifest breaks a rule of agent-engine 2 or flow-engine 2.2.

    `path` is where (`capabilities[0].tools[2].name`; empty for the document itself), `message` what is wrong
    there and what would be right. `str()` joins the two. Neither holds more than a short quote of a document.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class Place:
    """A path that costs nothing until an error has to print it: a link to the parent and one key."""

    __slots__ = ("_key", "_parent")

    def __init__(self, parent: Place | None = None, key: str | int = "") -> None:
        self._parent = parent
        self._key = key

    def __truediv__(self, key: str | int) -> Place:
        """The place of a member (text) or of an element (number)."""
        return Place(self, key)

    def __str__(self) -> str:
        keys: list[str | int] = []
        place = self
        while place._parent is not None:
            keys.append(place._key)
            place = place._parent
        text = ""
        for key in reversed(keys):
            if isinstance(key, int):
                text += f"[{key}]"
            elif _is_plain(key):
                text += f".{key}" if text else key
            else:
                text += f"[{quote(key)}]"
        return text

    def refuse(self, message: str) -> NoReturn:
        """Raises `ManifestInvalid` for this place."""
        raise ManifestInvalid(str(self), message)


def _is_plain(key: str) -> bool:
    return len(key) <= _QUOTE_LIMIT and key.isascii() and key.replace("_", "a").replace("-", "a").isalnum()


def quote(value: object) -> str:
    """A short, printable rendering of a string (or of what stands where one should) for an error text."""
    if not isinstance(value, str):
        return kind_of(value)
    text = value if len(value) <= _QUOTE_LIMIT else value[:_QUOTE_LIMIT] + "…"
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "'" + printable.translate(_UNPRINTABLE) + "'"


def kind_of(value: object) -> str:
    """What an error text calls the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    return type(value).__name__


def one_of(choices: Iterable[str]) -> str:
    """`'a', 'b' or 'c'`."""
    quoted = [quote(choice) for choice in choices]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
