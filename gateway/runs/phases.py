"""The lives of an effect and of a run as tables: every step they may take, and no other.

An effect is asked for at core. Core knows its outcome (ANSWERED), will bring it later (HOLDING), or has the
harness execute it; then its value or its error is reported, and core's answer ends it. A run prepares its
MCP servers and its transcript, lets the engine work, reports, and ends; or it is given back.

To change a life, change the table first: the code asks it before every step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar


class EffectPhase(enum.StrEnum):
    """Where an effect stands."""

    NEW = "new"
    ASKING = "asking"
    HOLDING = "holding"
    EXECUTING = "executing"
    REPORTING_VALUE = "reporting-value"
    REPORTING_ERROR = "reporting-error"
    ANSWERED = "answered"


class RunPhase(enum.StrEnum):
    """Where a run stands."""

    PREPARING = "preparing"
    RUNNING = "running"
    REPORTING = "reporting"
    RELEASING = "releasing"
    ENDED = "ended"


_E = EffectPhase
EFFECT_STEPS: Final[Mapping[EffectPhase, frozenset[EffectPhase]]] = {
    # Aborted before it was asked for, or the intent could not be sent.
    _E.NEW: frozenset({_E.ASKING, _E.ANSWERED}),
    _E.ASKING: frozenset({_E.HOLDING, _E.EXECUTING, _E.ANSWERED}),
    _E.HOLDING: frozenset({_E.ANSWERED}),
    # Straight to the end: recoverable and given back, so the next run joins it.
    _E.EXECUTING: frozenset({_E.REPORTING_VALUE, _E.REPORTING_ERROR, _E.ANSWERED}),
    # A refused value is followed by an error report, unless the run is not ours any more.
    _E.REPORTING_VALUE: frozenset({_E.REPORTING_ERROR, _E.ANSWERED}),
    _E.REPORTING_ERROR: frozenset({_E.ANSWERED}),
    _E.ANSWERED: frozenset(),
}

_R = RunPhase
RUN_STEPS: Final[Mapping[RunPhase, frozenset[RunPhase]]] = {
    # Without an engine: preparing failed, and the run is reported as thrown or given back.
    _R.PREPARING: frozenset({_R.RUNNING, _R.REPORTING, _R.RELEASING, _R.ENDED}),
    _R.RUNNING: frozenset({_R.REPORTING, _R.RELEASING, _R.ENDED}),
    _R.REPORTING: frozenset({_R.ENDED}),
    _R.RELEASING: frozenset({_R.ENDED}),
    _R.ENDED: frozenset(),
}

P = TypeVar("P", EffectPhase, RunPhase)


def next_phase(steps: Mapping[P, frozenset[P]], now: P, then: P) -> P:
    """The next phase. Raises AssertionError for a step that the table does not have: a fault of ours."""
    if then not in steps[now]:
        raise AssertionError(f"{now} can't become {then}")
    return then
