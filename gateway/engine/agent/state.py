"""An agent's execution state while a segment runs (agent-engine 6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gateway.engine.agent.plan import Plan
from gateway.engine.agent.transcript import Transcript

StateStatus = Literal["ready", "active", "completed", "paused", "cancelled", "failed"]


class AgentState:
    """The state, changed in place. Documents in it (bag, turn, cancelled calls) are replaced, not changed."""

    __slots__ = (
        "agent_id",
        "bag",
        "cancelled_calls",
        "execution_id",
        "manifest_hash",
        "output_contract",
        "plan",
        "revision",
        "status",
        "transcript",
        "turn",
        "turn_count",
    )

    def __init__(
        self,
        *,
        agent_id: str,
        manifest_hash: str,
        execution_id: str,
        output_contract: Mapping[str, Any] | None,
    ) -> None:
        self.agent_id = agent_id
        self.manifest_hash = manifest_hash
        self.execution_id = execution_id
        self.output_contract = output_contract
        self.revision = 0
        self.turn_count = 0
        self.status: StateStatus = "ready"
        self.bag: dict[str, Any] = {}
        self.plan: Plan | None = None
        self.turn: dict[str, Any] | None = None
        self.cancelled_calls: list[Any] | None = None
        self.transcript = Transcript()

    @classmethod
    def from_document(cls, document: Mapping[str, Any], transcript: Transcript) -> AgentState:
        """The state of a valid document."""
        state = cls(
            agent_id=document["agentId"],
            manifest_hash=document["manifestHash"],
            execution_id=document["executionId"],
            output_contract=document.get("outputContract"),
        )
        state.revision = document["revision"]
        state.turn_count = document["turnCount"]
        state.status = document["status"]
        state.bag = document.get("state", {})
        plan = document.get("plan")
        state.plan = None if plan is None else Plan.from_document(plan)
        state.turn = document.get("turn")
        state.cancelled_calls = document.get("cancelledCalls")
        state.transcript = transcript
        return state

    def document(self) -> dict[str, Any]:
        """The state as it is saved, without its transcript."""
        document: dict[str, Any] = {
            "version": 1,
            "agentId": self.agent_id,
            "manifestHash": self.manifest_hash,
            "executionId": self.execution_id,
            "revision": self.revision,
            "turnCount": self.turn_count,
            "status": self.status,
            "state": self.bag,
        }
        if self.output_contract is not None:
            document["outputContract"] = self.output_contract
        if self.plan is not None:
            document["plan"] = self.plan.document()
        if self.turn is not None:
            document["turn"] = self.turn
        if self.cancelled_calls is not None:
            document["cancelledCalls"] = self.cancelled_calls
        return document

    def record(self) -> None:
        """A record point: the state counts one revision further."""
        self.revision += 1

    def open_turn(self, turn_id: str, input_: str | None = None) -> None:
        """Remembers the turn beyond the segment. `input_` is the text that started it, for its hooks."""
        started = {} if input_ is None else {"input": input_}
        self.turn = {"turnId": turn_id, **started, "attempts": {"afterStep": 0, "afterTurn": 0}}

    def keep_patch(self, patch: Mapping[str, Any]) -> None:
        """Remembers what the turn's first hook changed for all its steps."""
        if self.turn is not None:
            self.turn = {**self.turn, "patch": patch}

    def count_attempt(self, counter: Literal["afterStep", "afterTurn"]) -> None:
        """A hook asked for another answer."""
        if self.turn is not None:
            attempts = self.turn["attempts"]
            self.turn = {**self.turn, "attempts": {**attempts, counter: attempts[counter] + 1}}

    def merge(self, patch: Mapping[str, Any]) -> None:
        """Writes members into the session memory; whoever holds the old one keeps it unchanged."""
        self.bag = {**self.bag, **patch}
