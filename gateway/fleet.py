"""What the gateway needs to know of the three services as processes: are they there, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from protocol.jsjson import JsonValue


class ServicesHealth(Protocol):
    """Whether all three services can take work (operations 12.10).

    A service can while one of its replicas is SERVING; of the sandbox-manager's shards all must be.
    """

    def ready(self) -> bool:
        """All three can."""
        ...

    def missing(self) -> Sequence[str]:
        """The names of the services (`model-executor`, ...) that can't, in a fixed order."""
        ...

    def reasons(self) -> Mapping[str, str]:
        """Why each of those can't, by name: one sentence or several, which may be shown."""
        ...

    def in_flight(self) -> Mapping[str, int]:
        """How many calls of this gateway each service has, by name."""
        ...

    async def wait(self, ready: bool) -> None:
        """Returns when `ready()` has this value, at once when it has it already."""
        ...


class UnknownReplica(Exception):
    """`drain` was asked for a service or an address that is not known. The text may be shown."""


class Fleet(Protocol):
    """Facts about every replica the gateway knows, for `GET /fleet` and `POST /drain`."""

    def services(self) -> dict[str, JsonValue]:
        """Per service name: {"serving": bool, "replicas": [{"target", "serving", ...}]}. Never content."""
        ...

    def drain(self, service: str, target: str | None) -> AsyncIterator[dict[str, JsonValue]]:
        """Drains one replica (or, without a target, all of the service) and tells what still runs.

        Raises UnknownReplica at the first step.
        """
        ...


class AlwaysReady:
    """Services that live in this process, or that nobody watches."""

    def ready(self) -> bool:
        """They are there."""
        return True

    def missing(self) -> Sequence[str]:
        """None is missing."""
        return ()

    def reasons(self) -> Mapping[str, str]:
        """There is none."""
        return {}

    def in_flight(self) -> Mapping[str, int]:
        """Nobody counts."""
        return {}

    async def wait(self, ready: bool) -> None:
        """Never returns for False."""
        if not ready:
            await asyncio.get_running_loop().create_future()
