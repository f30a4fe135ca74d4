"""One verdict about one recorded vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "not built"]


@dataclass(frozen=True, slots=True)
class Case:
    """A record of a vector file, or a part of it, and what became of it."""

    name: str
    verdict: Verdict
    detail: str = ""


def judge(name: str, fault: str | None) -> Case:
    """Passed without a fault, failed with one."""
    return Case(name, "passed") if fault is None else Case(name, "failed", fault)
