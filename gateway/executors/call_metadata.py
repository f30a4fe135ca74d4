"""The metadata of one call, built from pieces that are made once per run (design 3.5)."""

from __future__ import annotations

from gateway.executors.contract import RunContext
from gateway.executors.replica import Replica
from services.common.logs import trace_context
from services.common.metadata import AFFINITY, RUN_TOKEN, TRACEPARENT, Metadata, affinity_of
from services.common.telemetry import new_trace_id, traceparent

_PIN = "affinity"


def run_metadata(replica: Replica, run: RunContext, key: str | None = None) -> Metadata:
    """Bearer, affinity of the session, trace context and the newest run token.

    With a `key`, that of a workspace, it is the affinity's and no run token goes along: what runs commands
    holds none (operations 12.4). Raises UnicodeEncodeError for a key with a lone surrogate.
    """
    name = _PIN if key is None else f"{_PIN} {key}"
    affinity = run.pins.get(name)
    if not isinstance(affinity, tuple):
        affinity = run.pins[name] = (AFFINITY, affinity_of(run.session_id if key is None else key))
    token = run.token() if key is None else None
    if token is None:
        return (*replica.bearer, affinity, _trace())
    return (*replica.bearer, affinity, _trace(), (RUN_TOKEN, token))


def plain_metadata(replica: Replica, key: str, token: str | None = None) -> Metadata:
    """The same for a call that belongs to no run."""
    tokens = () if token is None else ((RUN_TOKEN, token),)
    return (*replica.bearer, (AFFINITY, affinity_of(key)), _trace(), *tokens)


def _trace() -> tuple[str, str]:
    return (TRACEPARENT, trace_context.get() or traceparent(new_trace_id()))
