"""Where a node of a version 2 workflow stands, and what it can see from there (flow-engine 5.2, 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.flow.values import Value

ROOT: Final = "@"
"""The position of the root, in every flow anew."""

OUTSIDE_LOOPS: Final = "-"


def below(position: str, segment: str) -> str:
    """The position of a child."""
    return f"{position}{segment}" if position == ROOT else f"{position}.{segment}"


def next_iteration(vector: str, n: int) -> str:
    """The numbers of the loops around a node, once it stands in iteration `n` of one more."""
    return str(n) if vector == OUTSIDE_LOOPS else f"{vector}.{n}"


@dataclass(slots=True)
class Place:
    """How a node is named: `site` with the indices of maps, `key` without."""

    site: str
    key: str


@dataclass(slots=True)
class Scope:
    """What surrounds a node. Only `results` ever changes, while its chain runs.

    `flow` are the ids of nested flow agents from the root; `pending` are the indices of the maps inside the
    innermost of them and `indices` those of all maps, both as text; `vector` are the iterations.
    """

    agents: Mapping[str, Any]
    flow_input: Value
    results: dict[str, Value]
    flow: tuple[str, ...] = ()
    site_prefix: str = ""
    key_prefix: str = ""
    pending: str = ""
    indices: str = ""
    vector: str = OUTSIDE_LOOPS

    def of_chain(self) -> Scope:
        """The scope of a chain's steps: results of their own."""
        return self._with({}, self.pending, self.indices, self.vector)

    def of_item(self, index: int) -> Scope:
        """The scope of one item of a map."""
        return self._with(self.results, f"{self.pending}[{index}]", f"{self.indices}[{index}]", self.vector)

    def of_iteration(self, n: int) -> Scope:
        """The scope of one iteration of a loop."""
        return self._with(self.results, self.pending, self.indices, next_iteration(self.vector, n))

    def of_flow(self, agent_id: str, manifest: Mapping[str, Any], place: Place, given: Value) -> Scope:
        """The scope of a flow agent that runs inside this flow."""
        return Scope(
            manifest["agents"],
            given,
            {},
            (*self.flow, agent_id),
            f"{place.site}/",
            f"{place.key}/",
            "",
            self.indices,
            self.vector,
        )

    def leaf(self, part: str) -> Place:
        """The place of an agent or tool node."""
        return Place(f"{self.site_prefix}{part}{self.pending}", self.key_prefix + part)

    def stage(self, node: Mapping[str, Any], position: str) -> Place:
        """The place of a control node."""
        key = self.key_prefix + node.get("id", position)
        return Place(key + self.indices, key)

    def _with(self, results: dict[str, Value], pending: str, indices: str, vector: str) -> Scope:
        return Scope(
            self.agents,
            self.flow_input,
            results,
            self.flow,
            self.site_prefix,
            self.key_prefix,
            pending,
            indices,
            vector,
        )
