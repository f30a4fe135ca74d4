"""What the shared server asks of a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2

from services.common.work import WorkBook


class ServedService(Protocol):
    """One gRPC service of a process."""

    @property
    def full_name(self) -> str:
        """The gRPC name, for instance `whippletree.v1.McpPool`."""
        ...

    @property
    def service(self) -> str:
        """The process's name, for instance `mcp-pool`."""
        ...

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its handlers."""
        ...

    def in_flight(self) -> Sequence[admin_pb2.CallInFlight]:
        """The work in flight, at most 1,000 entries. Draining waits until it is empty."""
        ...

    async def stop_taking(self) -> None:
        """From now on new effects are refused (`not_started`); what runs goes on. May be called twice."""
        ...

    async def close(self) -> None:
        """Ends what still runs and gives everything back. The server bounds the wait."""
        ...


@runtime_checkable
class HasFacts(Protocol):
    """A service with something to say in Admin.Describe."""

    def facts(self) -> Mapping[str, str]:
        """Facts for people: `route`, `recovers`, `driver` and so on. No secret."""
        ...


@runtime_checkable
class HasCloseTime(Protocol):
    """A service whose closing follows steps of its own: a stop leaves that much for it."""

    @property
    def close_s(self) -> float:
        """What `close` takes at worst, in seconds."""
        ...


@runtime_checkable
class HasWork(Protocol):
    """A service whose counters and latencies Admin.Stats shows."""

    @property
    def work(self) -> WorkBook:
        """Its book of work."""
        ...


@runtime_checkable
class HasInstance(Protocol):
    """A service that names its instance itself, because records outside of the process carry it."""

    @property
    def instance(self) -> str:
        """What Admin.Describe says."""
        ...


@runtime_checkable
class HasReadiness(Protocol):
    """A service that isn't always able to take work (a root that can't be written)."""

    def bind_readiness(self, set_ready: Callable[[bool], None]) -> None:
        """Called once before the start. `set_ready` may be called at any time, from the event loop."""
        ...
