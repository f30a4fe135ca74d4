"""One workflow manifest, version 1 (flow-engine 2.1). It embeds nothing: its agents stand in core's registry."""

from __future__ import annotations

from typing import Final, TypeAlias

from protocol.manifests.nodes import check_depth, check_fn, check_tool, shape_of
from protocol.manifests.place import Place
from protocol.manifests.sandbox import check_sandbox_spec
from protocol.manifests.shape import (
    Members,
    any_array,
    any_object,
    closed_object,
    filled_string,
    version,
)

_WORKFLOW: Final = Members("kind workflowSchemaVersion id root", "sandbox")
_NODES: Final[dict[str, Members]] = {
    shape: Members(shape) for shape in ("agent", "tool", "chain", "switch", "parallel", "map", "loop", "slot")
}
_CHAIN: Final = Members("id steps")
_SWITCH: Final = Members("id on cases", "default")
_PARALLEL: Final = Members("id branches")
_MAP: Final = Members("id over each")
_LOOP: Final = Members("id run verify decide")
_SLOT: Final = Members("run", "id input")

Below: TypeAlias = list[tuple[object, Place]]
"""The nodes that a node holds."""


def check_workflow_v1(value: object) -> None:
    """Check a whole document; nesting costs no Python stack. Raises `ManifestInvalid`."""
    place = Place()
    workflow = closed_object(value, place, _WORKFLOW)
    if workflow["kind"] != "workflow":
        (place / "kind").refuse("must be 'workflow'")
    version(workflow, "workflowSchemaVersion", place, 1)
    filled_string(workflow["id"], place / "id")
    if "sandbox" in workflow:
        check_sandbox_spec(workflow["sandbox"], place / "sandbox")
    left: list[tuple[object, Place, int]] = [(workflow["root"], place / "root", 1)]
    while left:
        node, at, depth = left.pop()
        check_depth(depth, at)
        left.extend((below, where, depth + 1) for below, where in reversed(_check_node(node, at)))


def _check_node(value: object, place: Place) -> Below:
    node = any_object(value, place)
    shape = shape_of(node, place, _NODES)
    closed_object(node, place, _NODES[shape])
    return _CHECKS[shape](node[shape], place / shape)


def _agent(value: object, place: Place) -> Below:
    filled_string(value, place)
    return []


def _tool(value: object, place: Place) -> Below:
    check_tool(value, place)
    return []


def _chain(value: object, place: Place) -> Below:
    chain = closed_object(value, place, _CHAIN)
    filled_string(chain["id"], place / "id")
    at = place / "steps"
    steps = any_array(chain["steps"], at)
    if not steps:
        at.refuse("a chain needs at least one step")
    return [(step, at / index) for index, step in enumerate(steps)]


def _switch(value: object, place: Place) -> Below:
    switch = closed_object(value, place, _SWITCH)
    filled_string(switch["id"], place / "id")
    check_fn(switch["on"], place / "on")
    at = place / "cases"
    below = [(case, at / name) for name, case in any_object(switch["cases"], at).items()]
    if "default" in switch:
        below.append((switch["default"], place / "default"))
    return below


def _parallel(value: object, place: Place) -> Below:
    parallel = closed_object(value, place, _PARALLEL)
    filled_string(parallel["id"], place / "id")
    at = place / "branches"
    return [(branch, at / name) for name, branch in any_object(parallel["branches"], at).items()]


def _map(value: object, place: Place) -> Below:
    mapping = closed_object(value, place, _MAP)
    filled_string(mapping["id"], place / "id")
    check_fn(mapping["over"], place / "over")
    return [(mapping["each"], place / "each")]


def _loop(value: object, place: Place) -> Below:
    loop = closed_object(value, place, _LOOP)
    filled_string(loop["id"], place / "id")
    check_fn(loop["decide"], place / "decide")
    below = [(loop["run"], place / "run")]
    at = place / "verify"
    verify = any_object(loop["verify"], at)
    if "fn" in verify:
        check_fn(verify, at)
    elif "agent" in verify or "slot" in verify:
        below.append((verify, at))
    else:
        at.refuse('must be {"fn": true}, an agent node or a slot')
    return below


def _slot(value: object, place: Place) -> Below:
    slot = closed_object(value, place, _SLOT)
    if "id" in slot:
        filled_string(slot["id"], place / "id")
    if "input" in slot:
        check_fn(slot["input"], place / "input")
    return [(slot["run"], place / "run")]


_CHECKS: Final = {
    "agent": _agent,
    "tool": _tool,
    "chain": _chain,
    "switch": _switch,
    "parallel": _parallel,
    "map": _map,
    "loop": _loop,
    "slot": _slot,
}
