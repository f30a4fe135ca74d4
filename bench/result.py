"""What a benchmark gives, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Figures, the baseline measured in the same run, and ratios between them."""

    name: str
    figures: Mapping[str, float]
    baseline: Mapping[str, float] = field(default_factory=dict)
    ratio: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        groups = {"figures": self.figures, "baseline": self.baseline, "ratio": self.ratio}
        rounded = {
            name: {key: round(value, 4) for key, value in group.items()} for name, group in groups.items()
        }
        return json.dumps({"name": self.name, **rounded})

    def to_table(self) -> str:
        """Rows for a terminal."""
        rows = [f"{self.name}"]
        for title, group in (("", self.figures), ("baseline ", self.baseline), ("ratio ", self.ratio)):
            rows += [f"  {title + key:<44} {value:>14,.3f}" for key, value in group.items()]
        return "\n".join(rows)


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample at `share` (0 to 1) of the sorted samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
