"""One workflow manifest, version 2 (flow-engine 2.2), without the documents it embeds."""

from __future__ import annotations

from typing import Any, Final

from protocol.manifests.agent import Embedded
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
_FN: Final = Members("fn")
_TOOL: Final = Members("name", "description inputSchema outputSchema")
_SWITCH: Final = Members("on cases", "default")
_MAP: Final = Members("each")
_LOOP: Final = Members("run verify", "max decide")
_NODES: Final = {
    shape: Members(shape, "id input")
    for shape in ("agent", "tool", "chain", "switch", "parallel", "map", "loop")
}
_MAX_INTEGER: Final = 2**53 - 1


def check_workflow(value: object, place: Place) -> list[Embedded]:
    """Check one workflow document; returns the agents and workflows it embeds, still to be checked.

    Nodes are walked with a list of what is left, so nesting costs no Python stack. Raises `ManifestInvalid`.
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
    embedded = []
    for key, agent in agents.items():
        if not key:
            at.refuse("an agent's key must not be empty")
        if any_object(agent, at / key).get("id") != key:
            (at / key / "id").refuse(f"must equal its key {quote(key)}")
        embedded.append(Embedded(agent, at / key))
    _check_nodes(workflow["root"], place / "root", agents)
    return embedded


def _check_nodes(root: object, place: Place, agents: dict[str, Any]) -> None:
    left = [Embedded(root, place)]
    while left:
        node = left.pop()
        left.extend(reversed(_check_node(node.value, node.place, agents)))


def _check_node(value: object, place: Place, agents: dict[str, Any]) -> list[Embedded]:
    """One node; returns the nodes below it."""
    node = any_object(value, place)
    shapes = [key for key in node if key in _NODES]
    if len(shapes) != 1:
        found = f"it has {' and '.join(shapes)}" if shapes else "it has none"
        place.refuse(f"a node has exactly one of {', '.join(_NODES)}; {found}")
    shape = shapes[0]
    closed_object(node, place, _NODES[shape])
    if "id" in node:
        filled_string(node["id"], place / "id")
    if "input" in node:
        _check_fn(node["input"], place / "input")
    return _CHECKS[shape](node[shape], place / shape, agents)


def _check_fn(value: object, place: Place) -> None:
    if closed_object(value, place, _FN)["fn"] is not True:
        (place / "fn").refuse("must be true")


def _agent(value: object, place: Place, agents: dict[str, Any]) -> list[Embedded]:
    if filled_string(value, place) not in agents:
        place.refuse(f"names {quote(value)}, which is no key of this workflow's agents; embed it there")
    return []


def _tool(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    tool = closed_object(value, place, _TOOL)
    filled_string(tool["name"], place / "name")
    optional_strings(tool, place, "description")
    optional_objects(tool, place, "inputSchema", "outputSchema")
    return []


def _chain(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    steps = any_array(value, place)
    if not steps:
        place.refuse("a chain needs at least one step")
    return [Embedded(step, place / index) for index, step in enumerate(steps)]


def _switch(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    switch = closed_object(value, place, _SWITCH)
    _check_fn(switch["on"], place / "on")
    at = place / "cases"
    below = [Embedded(case, at / name) for name, case in any_object(switch["cases"], at).items()]
    if "default" in switch:
        below.append(Embedded(switch["default"], place / "default"))
    return below


def _parallel(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    branches = any_object(value, place)
    if not branches:
        place.refuse("a parallel node needs at least one branch")
    return [Embedded(branch, place / name) for name, branch in branches.items()]


def _map(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    return [Embedded(closed_object(value, place, _MAP)["each"], place / "each")]


def _loop(value: object, place: Place, _agents: dict[str, Any]) -> list[Embedded]:
    loop = closed_object(value, place, _LOOP)
    if "max" in loop:
        most = whole_number(loop["max"])
        if most is None or not 1 <= most <= _MAX_INTEGER:
            (place / "max").refuse("must be a whole number of at least 1")
    if "decide" in loop:
        _check_fn(loop["decide"], place / "decide")
    if "max" not in loop and "decide" not in loop:
        place.refuse("a loop needs max or decide, else nothing ends it")
    below = [Embedded(loop["run"], place / "run")]
    verify = any_object(loop["verify"], place / "verify")
    if "fn" in verify:
        _check_fn(verify, place / "verify")
    elif "agent" in verify:
        below.append(Embedded(verify, place / "verify"))
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
