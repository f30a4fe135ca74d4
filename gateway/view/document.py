"""What the view shows, as one document: only named members, so that nothing else ever gets there.

Ids, kinds, phases, times, outcomes, addresses, versions and counts; never content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.jsjson import JsonValue

MAX_RUNS: Final = 200
"""Current runs that are shown, the oldest first; the others are counted."""
MAX_OPEN: Final = 50
"""Open effects of one run that are shown; the others are counted."""

_RUN: Final = ("runId", "sessionId", "turnId", "phase", "ageMs", "done")
_EFFECT: Final = ("effectId", "kind", "phase", "ageMs")
_ENDED: Final = ("runId", "sessionId", "turnId", "outcome", "endedMs", "tookMs", "done")
_REPLICA: Final = (
    "target",
    "name",
    "serving",
    "draining",
    "problem",
    "version",
    "instance",
    "since",
    "inFlight",
    "running",
    "counts",
    "latencies",
)


def view_document(
    *,
    gateway: Mapping[str, JsonValue],
    runs: Sequence[Mapping[str, Any]],
    ended: Sequence[Mapping[str, Any]],
    services: Mapping[str, Any],
) -> dict[str, JsonValue]:
    """`gateway` is shown as it is."""
    return {
        "gateway": dict(gateway),
        "runCount": len(runs),
        "runs": [_run(run) for run in runs[:MAX_RUNS]],
        "ended": [_only(run, _ENDED) for run in ended],
        "services": {
            name: {
                "serving": service.get("serving"),
                "replicas": [_only(replica, _REPLICA) for replica in service.get("replicas", ())],
            }
            for name, service in services.items()
        },
    }


def _run(run: Mapping[str, Any]) -> dict[str, JsonValue]:
    effects = run.get("open", ())
    shown: list[JsonValue] = [_only(effect, _EFFECT) for effect in effects[:MAX_OPEN]]
    return {**_only(run, _RUN), "openCount": len(effects), "open": shown}


def _only(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, JsonValue]:
    return {name: facts[name] for name in names if name in facts}
