"""The operator's limits, as a run brings them (flow-engine 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.flow.failures import NOT_A_LIST, TOO_MANY_ITEMS, TOO_MANY_ITERATIONS, NodeFailure
from gateway.engine.flow.values import Value, kind_name
from gateway.engine.shapes import is_number
from protocol.jsjson import JsonValue, stringify_number

MAX_MAP_ITEMS: Final = 1000
MAX_LOOP_ITERATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """How many items a map and how many iterations one execution of a loop may have; 0 allows none."""

    map_items: float
    loop_iterations: float


def read_limits(given: JsonValue) -> Limits:
    """What is missing or null takes its default; a number is taken as it is, since core has checked it."""
    members = given if isinstance(given, dict) else {}
    items, iterations = members.get("maxMapItems"), members.get("maxLoopIterations")
    return Limits(
        items if is_number(items) else MAX_MAP_ITEMS,
        iterations if is_number(iterations) else MAX_LOOP_ITERATIONS,
    )


def items_of(given: Value, limits: Limits, path: str) -> list[Any]:
    """The items of a map at `path`. Raises NodeFailure for no list, and for too long a one."""
    items = given.json
    if not isinstance(items, list):
        raise NodeFailure(NOT_A_LIST, f"A map takes a list; this one got {kind_name(items)}", path)
    if len(items) > limits.map_items:
        most = stringify_number(limits.map_items)
        raise NodeFailure(TOO_MANY_ITEMS, f"The map got {len(items)} items; maxMapItems allows {most}", path)
    return items


def check_iteration(n: int, limits: Limits, path: str) -> None:
    """Raises NodeFailure when the loop at `path` may not begin iteration `n`."""
    if n > limits.loop_iterations:
        most = stringify_number(limits.loop_iterations)
        raise NodeFailure(
            TOO_MANY_ITERATIONS, f"The loop would begin iteration {n}; maxLoopIterations allows {most}", path
        )
