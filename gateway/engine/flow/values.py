"""Values between stages, and how flows read those that others made (flow-engine 6.3, 7.6, 7.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.contract import ABSENT, Absent
from gateway.engine.flow.failures import TOOL_DENIED, NodeFailure, Unreadable
from protocol.jsjson import JsonValue, js_order, stringify_number
from protocol.manifests.place import kind_of

_MARKER: Final = "__nylorunAgentTurn"
_DENIED: Final = "The tool call was denied"


@dataclass(slots=True, eq=False)
class Value:
    """What a stage gets or gives; nobody changes it. `json` is ABSENT where JavaScript has `undefined`.

    `plain` as in `protocol.jsjson.Parsed`: documents made of plain values are hashed and sent the fast way.
    """

    json: JsonValue | Absent
    plain: bool = False


NOTHING: Final = Value(ABSENT, True)


def document(members: Mapping[str, Value]) -> Value:
    """An object of these members, without those that do not exist. The names are ASCII."""
    built: dict[str, Any] = {}
    plain = True
    for name, value in members.items():
        if value.json is not ABSENT:
            built[name] = value.json
            plain = plain and value.plain
    return Value(built, plain)


def named(members: Mapping[str, Value]) -> Value:
    """The same for names that people chose."""
    made = document(members)
    assert isinstance(made.json, dict)
    return Value(js_order(made.json), made.plain and all(map(str.isascii, made.json)))


def listed(items: list[Value]) -> Value:
    """An array of values that exist."""
    return Value([None if item.json is ABSENT else item.json for item in items], all(i.plain for i in items))


def whole(number: int) -> Value:
    """An integer of ours."""
    return Value(number, True)


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What an agent effect gave: its output, and the manifest its turn ran with when that is known."""

    output: Value
    agent: Value | None = None


def agent_turn(value: Value) -> AgentTurn:
    """Takes the turn marker off, if there is one."""
    found = value.json
    if isinstance(found, dict) and _MARKER in found and "output" in found and "agent" in found:
        version = found[_MARKER]
        if version == 1 and not isinstance(version, bool):
            agent = found["agent"]
            return AgentTurn(
                Value(found["output"], value.plain), None if agent is None else Value(agent, value.plain)
            )
    return AgentTurn(value)


def tool_output(value: Value, path: str) -> Value:
    """The output in a tool effect's value. Raises NodeFailure for a denial."""
    found = value.json
    if not isinstance(found, dict):
        return value
    kind = found.get("kind")
    if kind == "completed" and "output" in found:
        return Value(found["output"], value.plain)
    if kind == "denied":
        reason = found.get("reason")
        raise NodeFailure(TOOL_DENIED, reason if isinstance(reason, str) else _DENIED, path)
    return value


def member(value: JsonValue | Absent, name: str, what: str) -> JsonValue | Absent:
    """`value.name` as JavaScript reads it. Raises Unreadable for null and for what does not exist."""
    if value is None or value is ABSENT:
        raise Unreadable(f"{what} is {kind_name(value)}, so it has no '{name}'")
    return value.get(name, ABSENT) if isinstance(value, dict) else ABSENT


def truthy(value: JsonValue | Absent) -> bool:
    """Whether JavaScript takes the value for true: empty arrays and objects too."""
    return value is not ABSENT and (isinstance(value, dict | list) or bool(value))


def kind_name(value: JsonValue | Absent) -> str:
    """What messages call the type of a value."""
    return "missing" if value is ABSENT else kind_of(value)


def js_string(value: JsonValue | Absent) -> str:
    """The text that a JavaScript template makes of a value."""
    if isinstance(value, list):
        return ",".join(_elements(value))
    return _scalar_string(value)


def _elements(items: list[Any]) -> list[str]:
    """The texts of an array's elements, those of arrays inside it in their place, at any depth."""
    texts: list[str] = []
    left: list[Any] = items[::-1]
    while left:
        item = left.pop()
        if isinstance(item, list) and item:
            left.extend(reversed(item))
        else:
            texts.append("" if item is None or item == [] else _scalar_string(item))
    return texts


def _scalar_string(value: JsonValue | Absent) -> str:
    if value is ABSENT:
        return "undefined"
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        return stringify_number(value)
    return "[object Object]"
