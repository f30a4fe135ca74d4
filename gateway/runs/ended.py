"""The last runs that ended here, whichever connection they came over: ids, times and outcomes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

KEPT_RUNS: Final = 50
MAX_ID_CHARS: Final = 200
"""Of an id that is kept; the rest of a longer one is left out."""


class EndedRuns:
    """At most KEPT_RUNS, the latest first."""

    def __init__(self) -> None:
        self._runs: deque[dict[str, Any]] = deque(maxlen=KEPT_RUNS)

    def add(self, facts: Mapping[str, Any], outcome: str) -> None:
        """`facts` are a run's own at its end."""
        ids = {name: str(facts[name])[:MAX_ID_CHARS] for name in ("runId", "sessionId", "turnId")}
        self._runs.appendleft(
            {
                **ids,
                "outcome": outcome,
                "endedMs": round(time.time() * 1000),
                "tookMs": facts["ageMs"],
                "done": facts["done"],
            }
        )

    def facts(self) -> list[dict[str, Any]]:
        """What may be shown of them; `endedMs` is in milliseconds since 1970."""
        return list(self._runs)
