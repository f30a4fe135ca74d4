"""One workflow manifest, version 2 (flow-engine 2.2), without the documents it embeds."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from protocol.manifests.agent import Embedded, is_workflow
from protocol.manifests.nodes import check_depth, check_fn, check_tool, shape_of
from protocol.manifests.place import Place, quote
from protocol.manifests.sandbox import check_sandbox_spec
from protocol.manifests.shape import (
    Members,
    any_array,
    any_object,
    closed_object,
    filled_string,
    optional_objects,
    optional_strings,
    version,
    whole_number,
)

_WORKFLOW: Final = Members(
    "kind workflowSchemaVersion id root agents",
    "name description metadata inputSchema outputSchema sandbox",
)
_SWITCH: Final = Members("on cases", "default")
_MAP: Final = Members("each")
_LOOP: Final = Members("run verify", "max decide")
_NODES: Final[dict[str, Members]] = {
    shape: Members(shape, "id input")
    for shape in ("agent", "tool", "chain", "switch", "parallel", "map", "loop")
}
_MAX_INTEGER: Final = 2**53 - 1

Below: TypeAlias = list[tuple[object, Place]]
"""The nodes that a node holds."""


def check_workflow(value: object, place: Place, depth: int = 0) -> list[Embedded]:
    """Check one workflow document; returns the agents and workflows it embeds, still to be checked.

    Nodes are walked with a list of what is left, so nesting costs no Python stack. `depth` is the root node's
    (see `Embedded`). Raises `ManifestInvalid`.
    """
    workflow = closed_object(value, place, _WORKFLOW)
    if workflow["kind"] != "workflow":
        (place / "kind").refuse("must be 'workflow'")
    version(workflow, "workflowSchemaVersion", place, 2)
    filled_string(workflow["id"], place / "id")
    if "name" in workflow:
        filled_string(workflow["name"], place / "name")
    optional_strings(workflow, place, "description")
    optional_objects(workflow, place, "metadata", "inputSchema", "outputSchema")
    if "sandbox" in workflow:
        check_sandbox_spec(workflow["sandbox"], place / "sandbox")
    at = place / "agents"
    agents = any_object(workflow["agents"], at)
    for key, agent in agents.items():
        if not key:
            at.refuse("an agent's key must not be empty")
        if any_object(agent, at / key).get("id") != key:
            (at / key / "id").refuse(f"must equal its key {quote(key)}")
    deepest = _check_nodes(Embedded(workflow["root"], place / "root", depth), agents)
    return [
        # A flow that no node names is counted from its own root.
        Embedded(agent, at / key, deepest.get(key, 0) + 1 if depth and is_workflow(agent) else 0)
        for key, agent in agents.items()
    ]


def _check_nodes(root: Embedded, agents: dict[str, Any]) -> dict[str, int]:
    """Checks every node; returns how deep the deepest node stands that names each agent."""
    deepest: dict[str, int] = {}
    left = [root]
    while left:
        node = left.pop()
        depth = node.depth
        if depth:
            check_depth(depth, node.place)
        below = _check_node(node.value, node.place, agents)
        if not below and depth and "agent" in node.value:
            name = node.value["agent"]
            deepest[name] = max(depth, deepest.get(name, 0))
        next_depth = depth + 1 if depth else 0
        left.extend(Embedded(value, place, next_depth) for value, place in reversed(below))
    return deepest


def _check_node(value: object, place: Place, agents: dict[str, Any]) -> Below:
    """One node; returns the nodes below it."""
    node = any_object(value, place)
    shape = shape_of(node, place, _NODES)
    closed_object(node, place, _NODES[shape])
    if "id" in node:
        filled_string(node["id"], place / "id")
    if "input" in node:
        check_fn(node["input"], place / "input")
    return _CHECKS[shape](node[shape], place / shape, agents)


def _agent(value: object, place: Place, agents: dict[str, Any]) -> Below:
    if filled_string(value, place) not in agents:
        place.refuse(f"names {quote(value)}, which is no key of this workflow's agents; embed it there")
    return []


def _tool(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    check_tool(value, place)
    return []


def _chain(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    steps = any_array(value, place)
    if not steps:
        place.refuse("a chain needs at least one step")
    return [(step, place / index) for index, step in enumerate(steps)]


def _switch(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    switch = closed_object(value, place, _SWITCH)
    check_fn(switch["on"], place / "on")
    at = place / "cases"
    below = [(case, at / name) for name, case in any_object(switch["cases"], at).items()]
    if "default" in switch:
        below.append((switch["default"], place / "default"))
    return below


def _parallel(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    branches = any_object(value, place)
    if not branches:
        place.refuse("a parallel node needs at least one branch")
    return [(branch, place / name) for name, branch in branches.items()]


def _map(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    return [(closed_object(value, place, _MAP)["each"], place / "each")]


def _loop(value: object, place: Place, _agents: dict[str, Any]) -> Below:
    loop = closed_object(value, place, _LOOP)
    if "max" in loop:
        most = whole_number(loop["max"])
        if most is None or not 1 <= most <= _MAX_INTEGER:
            (place / "max").refuse("must be a whole number of at least 1")
    if "decide" in loop:
        check_fn(loop["decide"], place / "decide")
    if "max" not in loop and "decide" not in loop:
        place.refuse("a loop needs max or decide, else nothing ends it")
    below = [(loop["run"], place / "run")]
    verify = any_object(loop["verify"], place / "verify")
    if "fn" in verify:
        check_fn(verify, place / "verify")
    elif "agent" in verify:
        below.append((verify, place / "verify"))
    else:
        (place / "verify").refuse('must be {"fn": true} or an agent node')
    return below


_CHECKS: Final = {
    "agent": _agent,
    "tool": _tool,
    "chain": _chain,
    "switch": _switch,
    "parallel": _parallel,
    "map": _map,
    "loop": _loop,
}
