"""What every part of one agent's run shares."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.agent.definition import AgentDefinition
from gateway.engine.agent.ids import IdScope
from gateway.engine.agent.origin import Origin
from gateway.engine.agent.state import AgentState
from gateway.engine.contract import Absent
from gateway.engine.host import Host
from protocol.jsjson import JsonValue


@dataclass(frozen=True, slots=True)
class AgentContext:
    """One agent running: the root, or an agent used as a tool inside a delegation.

    `info` is the session's, the same for all agents of a segment.
    """

    host: Host
    origin: Origin
    definition: AgentDefinition
    state: AgentState
    ids: IdScope
    info: JsonValue | Absent

    @property
    def is_child(self) -> bool:
        """It runs as a tool: nothing in it can pause."""
        return self.origin.child is not None


@dataclass(frozen=True, slots=True)
class Place:
    """One step of a turn; `number` counts from 1, `opens_turn` says that the turn starts with it."""

    turn_id: str
    step_id: str
    number: int
    opens_turn: bool
