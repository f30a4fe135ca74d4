"""A run that a harness holds: what core remembers of it between its requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import HarnessApiError
from services.dev_core.effects.held import HandedOut, HeldRun
from services.dev_core.harness.connection import Connection
from services.dev_core.manifests import ManifestFacts, McpTools
from services.dev_core.run_tokens import RunToken
from services.dev_core.turns.settle import Abort


@dataclass(slots=True, eq=False)
class Run:
    """One leased segment.

    `answer` is the lease's result (JSON text). `lease_until` is in the loop's time. `asked` holds the
    effects the run asked about, and what it was handed of them. `ended_by` is the method that ended the run
    and the answer it is getting. `again`: the session became runnable while the run held it.
    """

    held: HeldRun
    connection: Connection
    facts: ManifestFacts
    mcp: McpTools
    answer: str
    lease_until: float
    token: RunToken
    abort: Abort | None = None
    asked: dict[str, HandedOut | None] = field(default_factory=dict)
    ended_by: tuple[str, asyncio.Future[Any]] | None = None
    over: bool = False
    again: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.held.run_id

    @property
    def session_id(self) -> str:
        """The run's session."""
        return self.held.session_id

    @property
    def ended(self) -> bool:
        """Whether the run takes no more requests."""
        return self.over or self.ended_by is not None

    def stop_timers(self) -> None:
        """Nothing is due for the run any more."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def held_run(connection: Connection, run_id: str) -> Run:
    """A run that the connection holds and that has not ended. Raises HarnessApiError `run_not_held`."""
    run = connection.runs.get(run_id)
    if run is None or run.ended:
        raise run_not_held(run_id)
    return run


def run_not_held(run_id: str) -> HarnessApiError:
    """The run is unknown here, over, or another connection's."""
    return HarnessApiError("run_not_held", f"The run {run_id} is not held by this connection")
