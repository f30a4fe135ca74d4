"""`anyOf`, `oneOf`, `allOf`, and the merging of what the branches of an `allOf` made of a value."""

from __future__ import annotations

from typing import Any, Final

from protocol.jsjson import js_order
from protocol.json_schema.errors import ValidationStopped
from protocol.json_schema.js_values import PROTO
from protocol.json_schema.nodes import Combination, Node, Run, Verdict
from protocol.json_schema.outcome import Fault, Outcome, aborts, put_into_words, unrecognized
from protocol.steps import Steps, run_steps

_NO_MATCH: Final = Fault("invalid_union", "Invalid input")
_TWO_MATCHES: Final = Fault("invalid_union", "Invalid input: more than one option matched")


class UnionNode(Combination):
    """The first option that fits. If none does: the only option that did not abort, else `Invalid input`."""

    __slots__ = ("options",)

    def __init__(self, options: list[Node]) -> None:
        super().__init__(options)
        self.options = options

    def test(self, value: Any) -> Verdict:
        failed: list[Outcome] = []
        for option in self.options:
            verdict = option.test(value)
            if verdict is None or not verdict.faults:
                return verdict
            failed.append(verdict)
        return _only_candidate(value, failed)

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        failed: list[Outcome] = []
        last: Node | None = None
        for option in self.options:
            if option is not last:
                verdict: Verdict = option.test(value) if option.leaf else (yield option.steps(value, run))
            if verdict is None or not verdict.faults:
                return verdict
            failed.append(verdict)
            last = option
        return _only_candidate(value, failed)

    def absence_from(self) -> tuple[Node, ...]:
        return tuple(self.options)


def _only_candidate(value: Any, failed: list[Outcome]) -> Outcome:
    if len(failed) == 1:
        return failed[0]
    candidates = [outcome for outcome in failed if not outcome.is_aborted()]
    if len(candidates) == 1:
        return candidates[0]
    for outcome in failed:
        put_into_words(outcome.faults)
    return Outcome(value, [_NO_MATCH])


class OneOfNode(Combination):
    """Exactly one option has to fit; the issues of the options are never told."""

    __slots__ = ("options",)

    def __init__(self, options: list[Node]) -> None:
        super().__init__(options)
        self.options = options

    def test(self, value: Any) -> Verdict:
        return _exactly_one(value, [option.test(value) for option in self.options])

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        verdicts: list[Verdict] = []
        for option in self.options:
            verdicts.append(option.test(value) if option.leaf else (yield option.steps(value, run)))
        return _exactly_one(value, verdicts)

    def absence_from(self) -> tuple[Node, ...]:
        return tuple(self.options)


def _exactly_one(value: Any, verdicts: list[Verdict]) -> Verdict:
    if len(verdicts) == 1:
        return verdicts[0]
    fitting = [verdict for verdict in verdicts if verdict is None or not verdict.faults]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        return Outcome(value, [_TWO_MATCHES])
    for verdict in verdicts:
        if verdict is not None:
            put_into_words(verdict.faults)
    return Outcome(value, [_NO_MATCH])


class AllOfNode(Combination):
    """All parts have to fit; what they made of the value is merged, two by two from the left."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Node]) -> None:
        super().__init__(parts)
        self.parts = parts

    def test(self, value: Any) -> Verdict:
        whole = self.parts[0].test(value)
        for part in self.parts[1:]:
            whole = _both(value, whole, part.test(value))
        return whole

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        parts = self.parts
        whole: Verdict = parts[0].test(value) if parts[0].leaf else (yield parts[0].steps(value, run))
        for part in parts[1:]:
            other: Verdict = part.test(value) if part.leaf else (yield part.steps(value, run))
            whole = _both(value, whole, other)
            if whole is not None:
                run.count(len(whole.faults))
        return whole


def _both(value: Any, left: Verdict, right: Verdict) -> Verdict:
    if left is None and right is None:
        return None
    left = left or Outcome(value, [])
    right = right or Outcome(value, [])
    faults = _faults_of_both(left.faults, right.faults) if left.faults or right.faults else []
    if left.value is right.value:
        return Outcome(left.value, faults)
    merged = run_steps(_merge(left.value, right.value))
    if merged is _DIFFERENT:
        if not aborts(faults):
            raise ValidationStopped("the branches of an allOf turn this value into different values")
        return Outcome(value, faults)
    return Outcome(merged, faults)


def _faults_of_both(left: list[Fault], right: list[Fault]) -> list[Fault]:
    """The issues of both sides; a key that only one side refuses belongs to the other and is no issue."""
    faults: list[Fault] = []
    refused: dict[str, set[int]] = {}
    key_faults: dict[str, Fault] = {}
    closed: Fault | None = None
    for side, own in enumerate((left, right)):
        for fault in own:
            if fault.keys is not None and fault.path is None:
                closed = closed or fault
                keys = fault.keys
            elif fault.key is not None and fault.path is not None and fault.path[1] is None:
                key = str(fault.path[0])
                key_faults.setdefault(key, fault)
                keys = [key]
            else:
                faults.append(fault)
                continue
            for key in keys:
                refused.setdefault(key, set()).add(side)
    both = [key for key, sides in refused.items() if len(sides) == 2]
    together: list[str] = []
    if closed is not None and closed.keys is not None:
        told = set(closed.keys)
        together = [key for key in both if key in told]
        if together:
            faults.append(unrecognized(together, goes_on=closed.goes_on))
    told = set(together)
    faults.extend(key_faults[key] for key in both if key not in told and key in key_faults)
    return faults


_DIFFERENT: Final = object()


def _merge(left: Any, right: Any) -> Steps[Any]:
    """Both as one value, or `_DIFFERENT`: members of both objects, arrays of one length, equal scalars."""
    if left is right:
        return left
    if isinstance(left, dict) and isinstance(right, dict):
        merged = {**left, **right}
        merged.pop(PROTO, None)
        for key in left:
            if key in right and key != PROTO:
                one, other = left[key], right[key]
                if one is not other:
                    both = yield _merge(one, other)
                    if both is _DIFFERENT:
                        return _DIFFERENT
                    merged[key] = both
        return js_order(merged)
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return _DIFFERENT
        items = []
        for one, other in zip(left, right, strict=True):
            if one is not other:
                both = yield _merge(one, other)
                if both is _DIFFERENT:
                    return _DIFFERENT
                items.append(both)
            else:
                items.append(one)
        return items
    if isinstance(left, list | dict) or isinstance(right, list | dict):
        return _DIFFERENT
    same = type(left) is type(right) or (
        isinstance(left, int | float)
        and isinstance(right, int | float)
        and not isinstance(left, bool)
        and not isinstance(right, bool)
    )
    return left if same and left == right else _DIFFERENT
