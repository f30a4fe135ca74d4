"""The metadata of one call, made once per run and replica while nothing in it changes (design 3.5)."""

from __future__ import annotations

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from gateway.executors.contract import RunContext
from gateway.executors.replica import Replica
from services.common.logs import trace_context
from services.common.metadata import AFFINITY, RUN_TOKEN, TRACEPARENT, Metadata, affinity_of
from services.common.telemetry import new_trace_id, traceparent

_PIN = "metadata"

CallMetadata = grpc.aio.Metadata
"""gRPC makes its own object of a tuple for every call; one that is there already is taken as it is."""


def run_metadata(replica: Replica, run: RunContext, key: str | None = None) -> CallMetadata:
    """Bearer, affinity of the session, trace context and the newest run token.

    With a `key`, that of a workspace, it is the affinity's and no run token goes along: what runs commands
    holds none (operations 12.4). Raises UnicodeEncodeError for a key with a lone surrogate.
    """
    token = run.token() if key is None else None
    trace = trace_context.get()
    name = _PIN if key is None else f"{_PIN} {key}"
    made = run.pins.get(name)
    if type(made) is not _Made:
        affinity = affinity_of(run.session_id if key is None else key)
    elif trace is not None and made.trace == trace and made.replica is replica and made.token == token:
        return made.metadata
    else:
        affinity = made.affinity
    metadata = _metadata(replica.bearer, affinity, trace or _new_trace(), token)
    run.pins[name] = _Made(replica, token, trace, affinity, metadata)
    return metadata


def plain_metadata(replica: Replica, key: str, token: str | None = None) -> CallMetadata:
    """The same for a call that belongs to no run."""
    return _metadata(replica.bearer, affinity_of(key), trace_context.get() or _new_trace(), token)


class _Made:
    """Metadata that a run's last call took along, and what it was made from."""

    __slots__ = ("affinity", "metadata", "replica", "token", "trace")

    def __init__(
        self, replica: Replica, token: str | None, trace: str | None, affinity: str, metadata: CallMetadata
    ) -> None:
        self.replica = replica
        self.token = token
        self.trace = trace
        self.affinity = affinity
        self.metadata = metadata


def _metadata(bearer: Metadata, affinity: str, trace: str, token: str | None) -> CallMetadata:
    tokens = () if token is None else ((RUN_TOKEN, token),)
    return CallMetadata(*bearer, (AFFINITY, affinity), (TRACEPARENT, trace), *tokens)


def _new_trace() -> str:
    return traceparent(new_trace_id())
