"""The four points of a turn at which capabilities may have a say (agent-engine 13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class HookPoint:
    """Before or after a turn or a step."""

    at: Literal["before", "after"]
    scope: Literal["turn", "step"]

    def identity(self, step_id: str) -> str:
        """What identifies the point's effect within its segment: a turn begins once."""
        name = f"{self.at}-{self.scope}"
        return name if self == BEFORE_TURN else f"{name}:{step_id}"


BEFORE_TURN: Final = HookPoint("before", "turn")
BEFORE_STEP: Final = HookPoint("before", "step")
AFTER_STEP: Final = HookPoint("after", "step")
AFTER_TURN: Final = HookPoint("after", "turn")


def registrants_of(capabilities: Iterable[Mapping[str, Any]]) -> dict[HookPoint, tuple[str, ...]]:
    """The ids of the capabilities that listen at each point, in manifest order; points nobody listens at
    are left out, so an agent without hooks has none."""
    found: dict[HookPoint, list[str]] = {}
    for capability in capabilities:
        for hook in capability.get("hooks", ()):
            found.setdefault(HookPoint(hook["at"], hook["scope"]), []).append(capability["id"])
    return {point: tuple(ids) for point, ids in found.items()}
