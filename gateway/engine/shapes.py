"""Closed shapes of documents, put together from small checks.

A check takes a value and where it stands, and raises ShapeError when the value does not fit. Objects are
closed: a member that is not named is refused. Nothing is copied or changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

Check: TypeAlias = Callable[[Any, str], None]


class ShapeError(ValueError):
    """A value does not fit; the text says where and what was expected."""


def any_json(value: Any, where: str) -> None:
    """Everything fits."""


def text(value: Any, where: str) -> None:
    """A string."""
    if not isinstance(value, str):
        raise ShapeError(f"{where} must be a string")


def name(value: Any, where: str) -> None:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ShapeError(f"{where} must be a non-empty string")


def flag(value: Any, where: str) -> None:
    """A boolean."""
    if not isinstance(value, bool):
        raise ShapeError(f"{where} must be a boolean")


def mapping(value: Any, where: str) -> None:
    """An object with any members."""
    if not isinstance(value, dict):
        raise ShapeError(f"{where} must be an object")


def key_or_index(value: Any, where: str) -> None:
    """A step of a path: a string or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ShapeError(f"{where} must be a string or a number")


def whole(least: int) -> Check:
    """An integer, at least `least`, that a double holds exactly."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
            raise ShapeError(f"{where} must be an integer of at least {least}")

    return check


def one_of(*options: str | int) -> Check:
    """One of the given strings or integers."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or value not in options:
            raise ShapeError(f"{where} must be one of {', '.join(map(repr, options))}")

    return check


def array(item: Check) -> Check:
    """An array whose items all fit."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise ShapeError(f"{where} must be an array")
        for index, element in enumerate(value):
            item(element, f"{where}[{index}]")

    return check


def values(item: Check) -> Check:
    """An object whose member values all fit."""

    def check(value: Any, where: str) -> None:
        mapping(value, where)
        for key, element in value.items():
            item(element, f"{where}.{key}")

    return check


def closed(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these members and no others."""
    members = {**required, **(optional or {})}

    def check(value: Any, where: str) -> None:
        mapping(value, where)
        for key, element in value.items():
            member = members.get(key)
            if member is None:
                raise ShapeError(f"{where} has an unknown member '{key}'")
            member(element, f"{where}.{key}")
        for key in required:
            if key not in value:
                raise ShapeError(f"{where} lacks '{key}'")

    return check


def at_least(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these members, and any others."""

    def check(value: Any, where: str) -> None:
        mapping(value, where)
        for key, member in required.items():
            if key not in value:
                raise ShapeError(f"{where} lacks '{key}'")
            member(value[key], f"{where}.{key}")
        for key, member in (optional or {}).items():
            if key in value:
                member(value[key], f"{where}.{key}")

    return check


def tagged(tag: str, shapes: Mapping[str, Check]) -> Check:
    """An object whose member `tag` says which of the shapes it must have."""

    def check(value: Any, where: str) -> None:
        mapping(value, where)
        kind = value.get(tag)
        shape = shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise ShapeError(f"{where} has an unknown {tag}")
        shape(value, where)

    return check


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether the value is a JSON number (booleans are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether the value is an integral number of at least 0, of any size."""
    return is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def is_finite(value: Any) -> bool:
    """Whether the value is a number that JSON can hold."""
    return is_number(value) and math.isfinite(value)
