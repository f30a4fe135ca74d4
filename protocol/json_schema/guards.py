"""What is asked of the raw value before an object or an array is validated.

An issue of a guard ends the validation of that value: nothing else is reported for it.
"""

from __future__ import annotations

from typing import Any

from protocol.jsjson import stringify_number
from protocol.json_schema.js_values import to_string
from protocol.json_schema.nodes import PASSES_ABSENCE, Node, Run, Verdict
from protocol.json_schema.outcome import Fault, Outcome, put_into_words
from protocol.steps import Steps, run_steps


class ObjectGuard(Node):
    """`minProperties`, `maxProperties` and `propertyNames`."""

    __slots__ = ("inner", "keys", "maximum", "minimum")

    def __init__(
        self, inner: Node, keys: Node | None, minimum: int | float | None, maximum: int | float | None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.keys = keys
        self.minimum = minimum
        self.maximum = maximum
        self.absence = PASSES_ABSENCE

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is dict:
            faults: list[Fault] = []
            if self.minimum is not None and len(value) < self.minimum:
                faults.append(_properties_fault("too_small", "small", ">=", self.minimum))
            if self.maximum is not None and len(value) > self.maximum:
                faults.append(_properties_fault("too_big", "big", "<=", self.maximum))
            keys = self.keys
            if keys is not None:
                for key in value:
                    verdict: Verdict = keys.test(key) if keys.leaf else (yield keys.steps(key, run))
                    if verdict is not None and verdict.faults:
                        put_into_words(verdict.faults)
                        faults.append(_key_fault(key))
            if faults:
                return Outcome(value, faults, aborted=True)
        inner: Verdict = yield self.inner.steps(value, run)
        return inner


def _properties_fault(code: str, adjective: str, sign: str, limit: int | float) -> Fault:
    message = f"Too {adjective}: expected object to have {sign}{stringify_number(limit)} properties"
    return Fault(code, message, goes_on=True)


def _key_fault(key: str) -> Fault:
    return Fault("invalid_key", "Invalid key in record", goes_on=True, path=(key, None), key=key)


class ArrayGuard(Node):
    """`uniqueItems`, and `contains` with `minContains` and `maxContains`."""

    __slots__ = ("contains", "inner", "maximum", "minimum", "unique")

    def __init__(
        self,
        inner: Node,
        *,
        unique: bool,
        contains: Node | None,
        minimum: int | float | None,
        maximum: int | float | None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.unique = unique
        self.contains = contains
        self.minimum = 1 if minimum is None else minimum
        self.maximum = maximum
        self.absence = PASSES_ABSENCE

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is list:
            faults = _duplicate_faults(value) if self.unique else []
            contains = self.contains
            if contains is not None:
                matches = 0
                enough = float("inf") if self.maximum is None else self.maximum + 1
                for item in value:
                    verdict: Verdict = (
                        contains.test(item) if contains.leaf else (yield contains.steps(item, run))
                    )
                    if verdict is None or not verdict.faults:
                        matches += 1
                        if matches >= enough:
                            break
                faults.extend(self._contains_faults(matches))
            if faults:
                return Outcome(value, faults, aborted=True)
        inner: Verdict = yield self.inner.steps(value, run)
        return inner

    def _contains_faults(self, matches: int) -> list[Fault]:
        faults = []
        if matches < self.minimum:
            message = f"Array must contain at least {_elements(self.minimum)}; found {matches}"
            faults.append(Fault("custom", message, goes_on=True))
        if self.maximum is not None and matches > self.maximum:
            message = f"Array must contain at most {_elements(self.maximum)}"
            faults.append(Fault("custom", message, goes_on=True))
        return faults


def _elements(count: int | float) -> str:
    return f"{stringify_number(count)} matching {'element' if count == 1 else 'elements'}"


def _duplicate_faults(items: list[Any]) -> list[Fault]:
    first_seen: dict[str, int] = {}
    faults = []
    for index, item in enumerate(items):
        key = _scalar_key(item) if not isinstance(item, list | dict) else run_steps(_key_of(item))
        first = first_seen.setdefault(key, index)
        if first != index:
            message = (
                f"Array items must be unique: element at index {index} duplicates the one at index {first}"
            )
            faults.append(Fault("custom", message, goes_on=True, path=(index, None)))
    return faults


def _scalar_key(value: Any) -> str:
    if value is None:
        return "z"
    kind = "s" if isinstance(value, str) else "b" if isinstance(value, bool) else "n"
    text = value if kind == "s" else to_string(value)
    return f"{kind}{len(text)}:{text}"


def _key_of(value: list[Any] | dict[str, Any]) -> Steps[str]:
    """A text that two values share exactly when they are equal, member order apart."""
    parts = []
    if isinstance(value, list):
        for item in value:
            parts.append((yield _key_of(item)) if isinstance(item, list | dict) else _scalar_key(item))
        return f"a{len(parts)}:[{','.join(parts)}]"
    for name in sorted(value):
        member = value[name]
        key = (yield _key_of(member)) if isinstance(member, list | dict) else _scalar_key(member)
        parts.append(f"{len(name)}:{name}={key}")
    return f"o{len(parts)}:{{{','.join(parts)}}}"
