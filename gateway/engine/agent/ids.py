"""Deterministic ids (agent-engine 7)."""

from __future__ import annotations

from typing import Literal, TypeAlias

Prefix: TypeAlias = Literal["run", "turn", "step", "invocation", "call", "interaction"]


class IdScope:
    """Counts ids under one seed. A segment has one; every delegation runs in a nested one."""

    __slots__ = ("_counters", "seed")

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._counters: dict[Prefix, int] = {}

    @classmethod
    def of_segment(cls, turn_id: str, segment: int) -> IdScope:
        """The root scope of a run of a segment; `turn_id` is the checkpoint's."""
        return cls(f"{turn_id}_{segment}")

    def new_id(self, prefix: Prefix) -> str:
        """The next id of that prefix."""
        count = self._counters.get(prefix, 0) + 1
        self._counters[prefix] = count
        return f"{prefix}_{self.seed}_{count}"

    def taken(self) -> dict[str, int]:
        """How many ids of each prefix were given out."""
        return dict(self._counters.items())

    def nested(self, delegation_id: str) -> IdScope:
        """A fresh scope for a delegation."""
        return IdScope(f"{self.seed}_{delegation_id}")
