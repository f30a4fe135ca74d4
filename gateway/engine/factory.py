"""Making an engine for a segment."""

from __future__ import annotations

from typing import Literal

from gateway.engine.agent.engine import prepare_agent
from gateway.engine.contract import SegmentInput
from gateway.engine.definitions import DefinitionCache
from gateway.engine.flow.engine import prepare_flow
from gateway.engine.host import Host
from gateway.engine.segment import Prepared, Segment


def make_engine(
    kind: Literal["agent", "flow"], segment: SegmentInput, definitions: DefinitionCache | None = None
) -> Segment:
    """The engine of one segment. `definitions` are shared between runs; without them nothing is."""
    shared = definitions if definitions is not None else DefinitionCache()

    def prepare(host: Host) -> Prepared:
        if kind == "flow":
            return Prepared(prepare_flow(segment, shared, host))
        return prepare_agent(segment, shared, host)

    return Segment(Host(segment.outcomes, segment.observe, repeats=kind == "flow"), prepare)
