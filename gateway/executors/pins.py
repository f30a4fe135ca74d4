"""Which replica a run's calls go to where a run sticks to one: chosen at its first call (design, section 1)."""

from __future__ import annotations

from collections.abc import Collection

from gateway.executors.contract import RunContext
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet


def pinned(replicas: ReplicaSet, run: RunContext, failed: Collection[Replica] = ()) -> Replica | None:
    """The run's replica, by rendezvous hash of the session.

    It stays the run's while it answers, also while it drains. A call that failed there and finds it not
    SERVING chooses anew.
    """
    name = f"replica {replicas.service}"
    pin = run.pins.get(name)
    if isinstance(pin, Replica) and not pin.closed and (pin.serving or pin not in failed):
        return pin
    chosen = replicas.ranked(run.session_id, failed)
    if chosen is not None:
        run.pins[name] = chosen
    return chosen
