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
    """What one segment knows of the world: the abort, the time, recorded outcomes, suspensions.

    With `repeats` an effect may be asked for again, so its recorded outcome is kept.
    """

    def __init__(
        self,
        outcomes: Mapping[str, RecordedOutcome],
        observe: Callable[[EffectRequest, bool], None] | None,
        *,
        repeats: bool = False,
    ) -> None:
        self._outcomes = dict(outcomes)
        self._observe = observe
        self._repeats = repeats
        self._asks = 0
        self._suspended: dict[str, tuple[int, Literal["pending", "uncertain"]]] = {}
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
        take = self._outcomes.get if self._repeats else self._outcomes.pop
        recorded = take(effect.effect_id, None)
        if self._observe is not None:
            self._observe(effect, recorded is not None)
        if recorded is not None:
            # Two turns, as many as it takes recorded flows to ask for everything in the order they did.
            yield TURN
            yield TURN
            if recorded.request_hash != effect.request_hash:
                raise HostFailure("effect_drift", DRIFT_MESSAGE)
            return Completed(recorded.outcome, recorded.plain)
        self._asks += 1
        asked = self._asks
        answer: Answer = yield Ask(effect)
        if isinstance(answer, Completed):
            return answer
        if isinstance(answer, HostError):
            raise HostFailure(answer.code, answer.message)
        if isinstance(answer, AbortedEffect):
            raise RunStopped(answer.abort)
        status: Literal["pending", "uncertain"] = "pending" if isinstance(answer, Pending) else "uncertain"
        self._suspended[effect.effect_id] = (asked, status)
        raise Suspended(effect.effect_id)

    def suspended(self) -> dict[str, Literal["pending", "uncertain"]]:
        """The effects without an outcome, in the order in which they were asked for."""
        by_asking = sorted(self._suspended.items(), key=lambda item: item[1])
        return {effect_id: status for effect_id, (_, status) in by_asking}

    def suspension(self) -> SegmentResult | None:
        """How the segment ends when some effect has no outcome; None when all have one."""
        if not self._suspended:
            return None
        suspended = self.suspended()
        status: Literal["uncertain", "waiting"] = (
            "uncertain" if "uncertain" in suspended.values() else "waiting"
        )
        return SegmentResult(status=status, effect_ids=tuple(suspended))
