"""Objects: declared members, additional ones, members whose names match a pattern."""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.js_regex import JsRegex
from protocol.jsjson import js_order
from protocol.json_schema.js_values import ABSENT, INHERITED, PROTO, Inherited
from protocol.json_schema.nodes import FILLS_ABSENCE, Node, Run, Verdict
from protocol.json_schema.outcome import Fault, Outcome, aborts, unrecognized, wrong_type
from protocol.steps import Steps


class Member(NamedTuple):
    """A declared member."""

    key: str
    node: Node
    required: bool


class ObjectNode(Node):
    """An object. The validated one has the declared members in schema order, then the others.

    `additional` is the schema of the others; None lets them through, and with `closed` they are refused.
    Issues: the declared members' in schema order, the others' in input order, then the refused keys.
    """

    __slots__ = ("_declared", "additional", "closed", "members")

    def __init__(self, members: list[Member], *, additional: Node | None, closed: bool) -> None:
        super().__init__()
        self._declared = frozenset(member.key for member in members)
        self.members = [member for member in members if member.key != PROTO]
        self.additional = additional
        self.closed = closed

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is not dict:
            return Outcome(value, [wrong_type("object", value)])
        result: dict[str, Any] = {}
        faults: list[Fault] = []
        verdict: Verdict
        for key, node, required in self.members:
            present = key in value
            if present:
                found = value[key]
            elif key in INHERITED:
                found, present = INHERITED[key], True
            elif required or node.absence == FILLS_ABSENCE:
                found = ABSENT
            else:
                continue
            verdict = node.test(found) if node.leaf else (yield node.steps(found, run))
            if verdict is not None:
                found = verdict.value
                if verdict.faults:
                    if not present and not required:
                        continue
                    faults.extend(run.under(key, verdict.faults))
            if not present:
                if required and node.absence == 0:
                    if verdict is None or not verdict.faults:
                        faults.append(_NONOPTIONAL.under(key))
                    continue
                if found is ABSENT and not (required and node.absence == FILLS_ABSENCE):
                    continue
            if found is ABSENT or isinstance(found, Inherited):
                run.unfinished = True
            result[key] = found
        if self.closed:
            extra = [key for key in value if key not in self._declared]
            if extra:
                faults.append(unrecognized(extra, goes_on=True))
            return Outcome(result, faults)
        additional = self.additional
        indices = False
        for key, found in value.items():
            if key in self._declared or key == PROTO:
                continue
            indices = indices or key[:1].isdigit()
            result[key] = found
            if additional is None:
                continue
            verdict = additional.test(found) if additional.leaf else (yield additional.steps(found, run))
            if verdict is not None:
                result[key] = verdict.value
                faults.extend(run.under(key, verdict.faults))
        if indices:
            result = js_order(result)
        return Outcome(result, faults)


_NONOPTIONAL = wrong_type("nonoptional", ABSENT)


class PatternNode(Node):
    """The members of an object whose names match a pattern; the others pass unseen."""

    __slots__ = ("node", "pattern")

    def __init__(self, pattern: JsRegex, node: Node) -> None:
        super().__init__()
        self.pattern = pattern
        self.node = node

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if type(value) is not dict:
            return Outcome(value, [wrong_type("record", value)])
        result: dict[str, Any] = {}
        faults: list[Fault] = []
        node = self.node
        for key, found in value.items():
            if key == PROTO:
                continue
            result[key] = found
            if self.pattern.test(key):
                verdict: Verdict = node.test(found) if node.leaf else (yield node.steps(found, run))
                if verdict is not None:
                    result[key] = verdict.value
                    faults.extend(run.under(key, verdict.faults))
        return Outcome(result, faults)


class ClosedNode(Node):
    """Refuses, once the rest of an object fits, the members that are neither declared nor match a pattern."""

    __slots__ = ("declared", "inner", "patterns")

    def __init__(self, inner: Node, declared: frozenset[str], patterns: list[JsRegex]) -> None:
        super().__init__()
        self.inner = inner
        self.declared = declared
        self.patterns = patterns

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        verdict: Verdict = yield self.inner.steps(value, run)
        if verdict is None or not isinstance(verdict.value, dict) or verdict.aborted:
            return verdict
        if aborts(verdict.faults):
            return verdict
        extra = [
            key
            for key in verdict.value
            if key not in self.declared and not any(pattern.test(key) for pattern in self.patterns)
        ]
        if not extra:
            return verdict
        return Outcome(verdict.value, [*verdict.faults, unrecognized(extra, goes_on=None)])
