"""A compiled schema and its verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from protocol.js_regex import RegexTooCostly
from protocol.json_schema.convert import convert
from protocol.json_schema.errors import SchemaUnsupported, ValidationStopped
from protocol.json_schema.js_values import Absent, Inherited, NoPrimitive
from protocol.json_schema.nodes import Node, Run, TooManyIssues
from protocol.json_schema.outcome import Issue
from protocol.steps import NestingError, Steps, run_steps


@dataclass(frozen=True, slots=True)
class Valid:
    """The value fits. `value` is what goes on: defaults filled in, declared members first.

    It may share parts with the validated value and with the schema; neither may be changed.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Invalid:
    """The value does not fit; the issues are in the peer's order, with its texts."""

    issues: list[Issue]


class Schema:
    """A compiled schema; safe to share, nothing in it changes."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def validate(self, value: Any) -> Valid | Invalid:
        """The verdict on a parsed JSON value, whose objects are in JavaScript's member order.

        Raises `ValidationStopped` where there is none, and nothing else, however deep the value nests.
        """
        node = self._node
        run = Run()
        try:
            verdict = node.test(value) if node.leaf else run_steps(node.steps(value, run))
            if verdict is None:
                return Valid(value)
            if verdict.faults:
                return Invalid([fault.issue() for fault in verdict.faults])
            return Valid(run_steps(_finished(verdict.value)) if run.unfinished else verdict.value)
        except NestingError:
            raise ValidationStopped("the schema refers to itself without end") from None
        except TooManyIssues:
            raise ValidationStopped("the value has too many issues to tell") from None
        except RegexTooCostly as error:
            raise ValidationStopped(str(error)) from None
        except NoPrimitive:
            raise ValidationStopped(
                "an object with a member toString stands where JavaScript needs a text"
            ) from None


def compile_schema(schema: Any) -> Schema:
    """A schema ready for use. Raises `SchemaUnsupported` (agent-engine 11: what fails a rebuild)."""
    return Schema(convert(run_steps(_plain(schema))))


def check_tool_input_schema(schema: Any) -> Schema:
    """A compiled tool input schema: as `compile_schema`, and the root's type has to be `object`.

    Raises `SchemaUnsupported`, for a wrong root with the message of `tool.invalid-schema`.
    """
    compiled = compile_schema(schema)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise SchemaUnsupported("Tool inputSchema JSON Schema root type must be object")
    return compiled


def _plain(value: Any) -> Steps[Any]:
    """The schema as JSON text would bring it over: a number beyond a double is null, minus zero is zero."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else 0 if value == 0 else value
    if isinstance(value, list):
        items = []
        for item in value:
            items.append((yield _plain(item)) if isinstance(item, float | list | dict) else item)
        return items
    if isinstance(value, dict):
        members = {}
        for key, member in value.items():
            members[key] = (yield _plain(member)) if isinstance(member, float | list | dict) else member
        return members
    return value


def _finished(value: Any) -> Steps[Any]:
    """The value as JSON text would bring it over: without members that hold nothing, null for such items."""
    if isinstance(value, list):
        items = []
        for item in value:
            done = yield _finished(item)
            items.append(None if isinstance(done, Absent | Inherited) else done)
        return items
    if isinstance(value, dict):
        members = {}
        for key, member in value.items():
            if not isinstance(member, Absent | Inherited):
                members[key] = yield _finished(member)
        return members
    return value
