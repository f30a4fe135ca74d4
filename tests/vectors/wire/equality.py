"""When two frames are the same: members in any order, numbers and truth values told apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return type(left) is type(right) and left == right


def without(value: Any, pointers: Sequence[str]) -> Any:
    """The value without what the JSON pointers name."""
    if not pointers:
        return value
    value = copy.deepcopy(value)
    for pointer in pointers:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        parent = value
        for part in path:
            parent = parent.get(part) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            parent.pop(last, None)
    return value


def difference(left: Any, right: Any, path: str = "") -> str:
    """Where two JSON values differ first, for a report; empty when they are the same."""
    if same(left, right):
        return ""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *right]:
            if key not in left or key not in right:
                return f"{path}/{key}: only {'expected' if key in left else 'sent'}"
            if inner := difference(left[key], right[key], f"{path}/{key}"):
                return inner
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            if inner := difference(a, b, f"{path}/{index}"):
                return inner
    return f"{path}: expected {str(left)[:200]}, sent {str(right)[:200]}"
