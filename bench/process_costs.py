"""What processes have used: CPU time, and memory now and at most. Linux only (`/proc`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds with those of children that have ended, and mebibytes: resident now, resident at most."""

    cpu_s: float
    resident_mib: float
    peak_mib: float


def cost_of(pid: int) -> Cost:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = sum(map(int, fields[11:15])) / _TICK
    status = dict(_status(pid))
    return Cost(cpu, status["VmRSS"] / _KIB_PER_MIB, status["VmHWM"] / _KIB_PER_MIB)


def costs_of(pids: Mapping[str, int]) -> dict[str, Cost]:
    """The costs of several processes by name."""
    return {name: cost_of(pid) for name, pid in pids.items()}


def _status(pid: int) -> Iterable[tuple[str, int]]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            yield name, int(value.split()[0])
