"""The engine's side of effect resolution: what every ask meets, whatever kind of engine asks.

In this order, as the harness resolves effects (harness-api 6): an aborted run asks for nothing; an outcome
that came with the run answers without asking, and is drift when the request differs; everything else goes
out. Answers without an outcome are remembered, because they decide how the segment ends (agent-engine 18.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentResult,
)
from gateway.engine.failures import HostFailure, RunStopped, Suspended
from gateway.engine.tasks import TURN, Ask, Work

DRIFT_MESSAGE: Final = "Effect identity request drift"


class Host:
    """What one segment knows of the world: the abort, the time, recorded outcomes, suspensions."""

    def __init__(
        self,
        outcomes: Mapping[str, RecordedOutcome],
        observe: Callable[[EffectRequest, bool], None] | None,
    ) -> None:
        self._outcomes = dict(outcomes)
        self._observe = observe
        self._order: dict[str, int] = {}
        self._asks = 0
        self._suspended: dict[str, Literal["pending", "uncertain"]] = {}
        self.abort: Abort | None = None
        self.now_ms = 0.0

    @property
    def aborted(self) -> bool:
        """Whether the run was aborted."""
        return self.abort is not None

    def ask(self, effect: EffectRequest) -> Work[Completed]:
        """Gets the outcome of an effect. Raises RunStopped, HostFailure, Suspended."""
        if self.abort is not None:
            raise RunStopped(self.abort)
        recorded = self._outcomes.pop(effect.effect_id, None)
        if self._observe is not None:
            self._observe(effect, recorded is not None)
        if recorded is not None:
            yield TURN
            if recorded.request_hash != effect.request_hash:
                raise HostFailure("effect_drift", DRIFT_MESSAGE)
            return Completed(recorded.outcome, recorded.plain)
        self._asks += 1
        self._order[effect.effect_id] = self._asks
        answer: Answer = yield Ask(effect)
        return self._outcome_of(effect.effect_id, answer)

    def _outcome_of(self, effect_id: str, answer: Answer) -> Completed:
        asked = self._order.pop(effect_id)
        if isinstance(answer, Completed):
            return answer
        if isinstance(answer, HostError):
            raise HostFailure(answer.code, answer.message)
        if isinstance(answer, AbortedEffect):
            raise RunStopped(answer.abort)
        self._order[effect_id] = asked
        self._suspended[effect_id] = "pending" if isinstance(answer, Pending) else "uncertain"
        raise Suspended(effect_id)

    def suspension(self) -> SegmentResult | None:
        """How the segment ends when some effect has no outcome; None when all have one."""
        if not self._suspended:
            return None
        return SegmentResult(
            status="uncertain" if "uncertain" in self._suspended.values() else "waiting",
            effect_ids=tuple(sorted(self._suspended, key=self._order.__getitem__)),
        )
