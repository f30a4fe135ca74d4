"""Where two JSON values part first, and how that is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.engine.contract import ABSENT
from protocol.jsjson import JsonError, dumps

_WIDTH: Final = 160
"""Characters of a value that are shown; of a long text those around the first difference."""

_BEFORE: Final = 40
"""Of these, the equal ones in front of it."""

_Path: TypeAlias = "tuple[_Path, str | int] | None"
"""What is above, and the member: shared between neighbours."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place that differs. A side without the member is ABSENT."""

    path: str
    before: Any
    after: Any

    def lines(self, before: str = "recorded", after: str = "now") -> list[str]:
        """Three lines for people: the place, and both sides."""
        width = max(len(before), len(after)) + 1
        one, other = excerpts(self.before, self.after)
        return [f"at {self.path}", f"  {before + ':':<{width}} {one}", f"  {after + ':':<{width}} {other}"]


def first_difference(before: Any, after: Any, ignore: Iterable[str] = ()) -> Difference | None:
    """The first difference, members in the order of `before`; None when the values are equal.

    The order of members doesn't count. `ignore` names members of the outermost objects that don't either.
    """
    ignored = frozenset(ignore)
    left: list[tuple[_Path, Any, Any]] = [(None, before, after)]
    while left:
        path, one, other = left.pop()
        if one is other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names = [*one, *(name for name in other if name not in one)]
            skipped = ignored if path is None else frozenset()
            left.extend(
                ((path, name), one.get(name, ABSENT), other.get(name, ABSENT))
                for name in reversed(names)
                if name not in skipped
            )
        elif _is_list(one) and _is_list(other):
            longest = max(len(one), len(other))
            left.extend(
                ((path, index), _item(one, index), _item(other, index)) for index in reversed(range(longest))
            )
        elif not _same_scalar(one, other):
            return Difference(_spelled(path), one, other)
    return None


def excerpts(before: Any, after: Any) -> tuple[str, str]:
    """Both values on one line each; long texts are cut around the first character that differs."""
    if isinstance(before, str) and isinstance(after, str):
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        start = max((min(len(before), len(after)) if at is None else at) - _BEFORE, 0)
        if max(len(before), len(after)) <= _WIDTH:
            start = 0
        return _excerpt(before, start), _excerpt(after, start)
    return shown(before), shown(after)


def shown(value: Any, width: int = _WIDTH) -> str:
    """A value as JSON on one line, cut to `width` characters; what is not there says so."""
    if value is ABSENT:
        return "(not there)"
    try:
        text = dumps(value)
    except (TypeError, JsonError):
        text = repr(value)
    return text if len(text) <= width else f"{text[:width]}… ({len(text)} characters)"


def _excerpt(text: str, start: int) -> str:
    end = start + _WIDTH
    cut = dumps(text[start:end])
    more = f" ({len(text)} characters)" if start or end < len(text) else ""
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}{more}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _item(items: Sequence[Any], index: int) -> Any:
    return items[index] if index < len(items) else ABSENT


def _same_scalar(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and bool(one == other)


def _spelled(path: _Path) -> str:
    """A path as people write it: `input.prompt[0].content`, `(the whole)` for the outermost value."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier() or part.replace("-", "_").isidentifier():
            parts.append(f".{part}")
        else:
            parts.append(f"[{dumps(part)}]")
    return "".join(reversed(parts)).removeprefix(".") or "(the whole)"
