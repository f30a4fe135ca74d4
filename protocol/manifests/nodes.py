"""What the nodes of workflow manifests have in common, whatever their version."""

from __future__ import annotations

from typing import Any, Final

from protocol.manifests.place import Place
from protocol.manifests.shape import (
    Members,
    closed_object,
    filled_string,
    optional_objects,
    optional_strings,
)

MAX_NODE_DEPTH: Final = 200
"""Levels of nodes that a flow may have, those of nested flow agents counted through."""

_FN: Final = Members("fn")
_TOOL: Final = Members("name", "description inputSchema outputSchema")


def check_fn(value: object, place: Place) -> None:
    """Exactly `{"fn": true}`: a function of the application."""
    if closed_object(value, place, _FN)["fn"] is not True:
        (place / "fn").refuse("must be true")


def check_tool(value: object, place: Place) -> None:
    """The tool of a tool node."""
    tool = closed_object(value, place, _TOOL)
    filled_string(tool["name"], place / "name")
    optional_strings(tool, place, "description")
    optional_objects(tool, place, "inputSchema", "outputSchema")


def shape_of(node: dict[str, Any], place: Place, shapes: dict[str, Members]) -> str:
    """Which of the shapes a node has; it has exactly one."""
    found = [key for key in node if key in shapes]
    if len(found) != 1:
        said = f"it has {' and '.join(found)}" if found else "it has none"
        place.refuse(f"a node has exactly one of {', '.join(shapes)}; {said}")
    return found[0]


def check_depth(depth: int, place: Place) -> None:
    """Refuses a node that stands deeper than flows may nest."""
    if depth > MAX_NODE_DEPTH:
        place.refuse(
            f"nodes nest at most {MAX_NODE_DEPTH} deep, nested flow agents counted through; "
            "move what is inside into an agent, or take stages apart"
        )
