"""What a loop knows from one iteration to the next (flow-engine 6.7, 7.6)."""

from __future__ import annotations

from typing import Any

from gateway.engine.contract import ABSENT
from gateway.engine.flow.failures import INVALID_AGENT, NodeFailure
from gateway.engine.flow.values import AgentTurn, Value
from gateway.engine.flow.variants import is_variant
from protocol.jsjson import JsonValue


class Attempts:
    """The iterations that ended without an output, and the manifest the body's agent runs with next.

    `agent` is None while no manifest is known. The first one a turn came back with is the pin: what a decision
    puts in its place must be a variant of it.
    """

    def __init__(self) -> None:
        self.agent: Value | None = None
        self._pin: JsonValue = None
        self._history: list[Any] = []
        self._plain = True

    def ran(self, turn: AgentTurn) -> Value:
        """Takes what the body's agent came back with; its output."""
        if turn.agent is not None:
            assert turn.agent.json is not ABSENT
            if self._pin is None:
                self._pin = turn.agent.json
            self.agent = turn.agent
        return turn.output

    def history(self) -> Value:
        """The earlier iterations, as they are now."""
        return Value(list(self._history), self._plain)

    def change_agent(self, agent: Value, *, is_leaf: bool, path: str) -> None:
        """Takes the manifest that a decision brings, if it brings one. Raises NodeFailure, and Unreadable."""
        if agent.json is ABSENT:
            return
        if not is_leaf:
            raise NodeFailure(
                INVALID_AGENT, "The decision brings an agent, and what the loop runs is not an agent", path
            )
        if self._pin is not None and not is_variant(agent.json, self._pin):
            raise NodeFailure(
                INVALID_AGENT, "The decision's agent is not a variant of the agent that the loop runs", path
            )
        self.agent = None if agent.json is None else agent

    def add(self, n: int, output: Value, verdict: Value) -> None:
        """Remembers an iteration."""
        entry: dict[str, Any] = {"iteration": n}
        for name, value in (("output", output), ("verdict", verdict)):
            if value.json is not ABSENT:
                entry[name] = value.json
                self._plain = self._plain and value.plain
        self._history.append(entry)
