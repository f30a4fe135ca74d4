"""Small checks shared by agent and workflow manifests: closed objects, non-empty strings, string maps.

Every function takes the place it reports and raises `ManifestInvalid`. None of them looks into free-form
parts (metadata, schemas), so none of them recurses further than the rules themselves go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from protocol.manifests.place import Place, kind_of, one_of, quote

JS_WHITESPACE: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What ECMAScript's `trim` takes away; Python's `str.strip` takes more (U+001C to U+001F, U+0085)."""


class Members:
    """The members of a closed object: the required and the optional ones, known to `closed_object`."""

    __slots__ = ("known", "required")

    def __init__(self, required: str, optional: str = "") -> None:
        self.required: tuple[str, ...] = tuple(required.split())
        self.known: frozenset[str] = frozenset(required.split() + optional.split())


def closed_object(value: object, place: Place, members: Members) -> dict[str, Any]:
    """The object itself, with every required member and nothing unknown."""
    whole = any_object(value, place)
    for key in whole:
        if key not in members.known:
            known = ", ".join(sorted(members.known)) or "none"
            (place / key).refuse(f"unknown member; take it out (members of this object: {known})")
    for key in members.required:
        if key not in whole:
            (place / key).refuse("is required and missing")
    return whole


def any_object(value: object, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        place.refuse(f"must be an object, not {kind_of(value)}")
    return value


def any_array(value: object, place: Place) -> list[Any]:
    if not isinstance(value, list):
        place.refuse(f"must be an array, not {kind_of(value)}")
    return value


def plain_string(value: object, place: Place) -> str:
    if not isinstance(value, str):
        place.refuse(f"must be a string, not {kind_of(value)}")
    return value


def filled_string(value: object, place: Place) -> str:
    """A string of at least one character."""
    text = plain_string(value, place)
    if not text:
        place.refuse("must not be empty; give it a text or, if it is optional, leave it out")
    return text


def string_array(value: object, place: Place) -> list[str]:
    entries = any_array(value, place)
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            plain_string(entry, place / index)
    return cast("list[str]", entries)


def string_map(value: object, place: Place) -> dict[str, str]:
    entries = any_object(value, place)
    for key, entry in entries.items():
        if not isinstance(entry, str):
            plain_string(entry, place / key)
    return cast("dict[str, str]", entries)


def choice(value: object, place: Place, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        place.refuse(f"must be {one_of(choices)}, not {quote(value)}")
    return value


def optional_strings(whole: Mapping[str, Any], place: Place, *keys: str) -> None:
    """Each of these members, where present, is a string (an empty one is fine)."""
    for key in keys:
        if key in whole:
            plain_string(whole[key], place / key)


def optional_objects(whole: Mapping[str, Any], place: Place, *keys: str) -> None:
    """Each of these members, where present, is an object; what is in it is not looked at."""
    for key in keys:
        if key in whole:
            any_object(whole[key], place / key)


def whole_number(value: object) -> int | None:
    """The value as an integer when it is a JSON number without a fraction, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def version(whole: Mapping[str, Any], key: str, place: Place, expected: int) -> None:
    """The member is this number; no other version of the document is read."""
    if whole_number(whole[key]) != expected:
        given = whole[key]
        number = isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e9
        (place / key).refuse(f"must be {expected}, not {given if number else kind_of(given)}")


def same_json(left: object, right: object) -> bool:
    """Whether two documents have the same canonical text (member order apart; true is not 1).

    Goes as deep as the shallower one.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(
            key in right and same_json(entry, right[key]) for key, entry in left.items()
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and left == right
