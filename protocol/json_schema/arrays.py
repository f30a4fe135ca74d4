"""Arrays of one kind of element, and tuples."""

from __future__ import annotations

from typing import Any

from protocol.json_schema.checks import LengthBound
from protocol.json_schema.js_values import ABSENT
from protocol.json_schema.nodes import FILLS_ABSENCE, Node, Run, Verdict
from protocol.json_schema.outcome import Fault, Outcome, stops, wrong_type
from protocol.steps import Steps


class ArrayNode(Node):
    """An array. Too many items are reported alone, before any is looked at."""

    __slots__ = ("bounds", "element")

    def __init__(self, element: Node, bounds: list[LengthBound]) -> None:
        super().__init__()
        self.element = element
        self.bounds = bounds

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is not list:
            return _with_sizes(Outcome(value, [wrong_type("array", value)]), self.bounds)
        for bound in self.bounds:
            if not bound.is_minimum and 0 <= bound.limit < len(value):
                fault = bound.fault(value)
                return Outcome(value, [Fault(fault.code, fault.message, goes_on=False)])
        element = self.element
        result = []
        faults: list[Fault] = []
        for index, found in enumerate(value):
            verdict: Verdict = element.test(found) if element.leaf else (yield element.steps(found, run))
            if verdict is None:
                result.append(found)
            else:
                result.append(verdict.value)
                faults.extend(run.under(index, verdict.faults))
        return _with_sizes(Outcome(result, faults), self.bounds)


class TupleNode(Node):
    """An array whose first items have schemas of their own. `rest` is the schema of the others, None for none.

    Items from `required` on may be missing. Issues: the others' first, then the positional ones.
    """

    __slots__ = ("bounds", "items", "required", "rest")

    def __init__(
        self, items: list[Node], required: int | float, rest: Node | None, bounds: list[LengthBound]
    ) -> None:
        super().__init__()
        self.items = items
        self.required = required
        self.rest = rest
        self.bounds = bounds

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is not list:
            return _with_sizes(Outcome(value, [wrong_type("tuple", value)]), self.bounds)
        items, rest = self.items, self.rest
        faults: list[Fault] = []
        if rest is None:
            least = self._least()
            if len(value) < least:
                return _with_sizes(Outcome([], [_size_fault(least, is_minimum=True)]), self.bounds)
            if len(value) > len(items):
                faults.append(_size_fault(len(items), is_minimum=False))
        verdict: Verdict
        verdicts: list[Verdict] = []
        for index, item in enumerate(items):
            if index < len(value):
                found = value[index]
                verdicts.append(item.test(found) if item.leaf else (yield item.steps(found, run)))
            elif index < self.required or item.absence == FILLS_ABSENCE:
                verdicts.append(item.test(ABSENT) if item.leaf else (yield item.steps(ABSENT, run)))
            else:
                verdicts.append(None)
        tail = []
        if rest is not None:
            for index in range(len(items), len(value)):
                found = value[index]
                verdict = rest.test(found) if rest.leaf else (yield rest.steps(found, run))
                if verdict is None:
                    tail.append(found)
                else:
                    tail.append(verdict.value)
                    faults.extend(run.under(index, verdict.faults))
        result = self._positional(value, verdicts, faults, run)
        if any(found is ABSENT for found in result):
            run.unfinished = True
        return _with_sizes(Outcome(result + tail, faults), self.bounds)

    def _least(self) -> int:
        """The length that a closed tuple has to have: up to the last item that does not do without a value."""
        for index in range(len(self.items) - 1, -1, -1):
            if index < self.required and not self.items[index].absence:
                return index + 1
        return 0

    def _positional(
        self, value: list[Any], verdicts: list[Verdict], faults: list[Fault], run: Run
    ) -> list[Any]:
        """The validated positional items; the list ends before the first missing one that may be missing."""
        result: list[Any] = []
        for index, (item, verdict) in enumerate(zip(self.items, verdicts, strict=True)):
            present = index < len(value)
            found = value[index] if present else ABSENT
            if present or index < self.required:
                if verdict is not None:
                    found = verdict.value
                    faults.extend(run.under(index, verdict.faults))
            elif item.absence != FILLS_ABSENCE:
                break
            elif verdict is not None and not verdict.faults:
                found = verdict.value
            result.append(found)
        while len(result) > len(value) and len(result) - 1 >= self.required and result[-1] is ABSENT:
            result.pop()
        return result


def _size_fault(limit: int, *, is_minimum: bool) -> Fault:
    bound = LengthBound(limit, is_minimum=is_minimum)
    fault = bound.fault([])
    return Fault(fault.code, fault.message)


def _with_sizes(outcome: Outcome, bounds: list[LengthBound]) -> Outcome:
    """The outcome with the issues of its size; the size is that of the validated array."""
    if bounds and not stops(outcome.faults):
        outcome.faults.extend([fault for bound in bounds if (fault := bound.check(outcome.value))])
    return outcome
