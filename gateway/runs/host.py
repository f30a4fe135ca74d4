"""What all runs of a gateway share, whichever connection they came over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.engine.contract import Engine, SegmentInput
from gateway.executors.contract import Executors
from gateway.recording.recorder import Recorder
from gateway.runs.ended import EndedRuns
from gateway.runs.manifests import ManifestPool
from gateway.tasks import Tasks
from gateway.timing import Timing
from gateway.tokens import RunTokens
from services.common.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the first answered `hello` of the process said that we work for (harness-api 5.1)."""

    tenant_id: str
    preference: str


@dataclass(slots=True)
class RunHost:
    """Executors, tokens, manifests, and the tasks that outlive a connection.

    `make_engine(kind, segment)` builds an engine. `recorder` is there when runs are recorded.
    `hold_limit_ms` and `max_runs` are limits of this process beside what core says; None means none.
    """

    executors: Executors
    make_engine: Callable[[str, SegmentInput], Engine]
    timing: Timing = field(default_factory=Timing)
    tokens: RunTokens = field(default_factory=RunTokens)
    manifests: ManifestPool = field(default_factory=ManifestPool)
    tasks: Tasks = field(default_factory=Tasks)
    ended: EndedRuns = field(default_factory=EndedRuns)
    telemetry: Telemetry = field(default_factory=Telemetry)
    recorder: Recorder | None = None
    identity: Identity | None = None
    hold_limit_ms: float | None = None
    max_runs: int | None = None
