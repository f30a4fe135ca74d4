"""The three services as processes: are they there, what do they do, and how they are drained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2

from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.fleet import UnknownReplica
from protocol.jsjson import JsonValue


class ServiceSets:
    """Health of all services, and facts about every replica (gateway/fleet.py)."""

    def __init__(self, sets: Sequence[ReplicaSet]) -> None:
        self._sets = sets

    def ready(self) -> bool:
        """All services can take work."""
        return all(replicas.ready for replicas in self._sets)

    def missing(self) -> Sequence[str]:
        """The services that can't."""
        return [replicas.service for replicas in self._sets if not replicas.ready]

    def reasons(self) -> Mapping[str, str]:
        """Why each of them can't."""
        return {replicas.service: replicas.reason() for replicas in self._sets if not replicas.ready}

    def in_flight(self) -> Mapping[str, int]:
        """This gateway's calls at each service."""
        return {
            replicas.service: sum(replica.in_flight for replica in replicas.replicas)
            for replicas in self._sets
        }

    async def wait(self, ready: bool) -> None:
        """Returns when `ready()` has this value."""
        changed = asyncio.Event()
        forgets = [replicas.listen(changed.set) for replicas in self._sets]
        try:
            while self.ready() is not ready:
                changed.clear()
                await changed.wait()
        finally:
            for forget in forgets:
                forget()

    def services(self) -> dict[str, JsonValue]:
        """Per service: whether it can take work, and each replica. Never content."""
        return {
            replicas.service: {
                "serving": replicas.ready,
                "replicas": [_facts(replica) for replica in replicas.replicas],
            }
            for replicas in self._sets
        }

    async def drain(self, service: str, target: str | None) -> AsyncIterator[dict[str, JsonValue]]:
        """Drains one replica (by address or name), or all of a service one after another."""
        replicas = next((one for one in self._sets if one.service == service), None)
        if replicas is None:
            known = ", ".join(one.service for one in self._sets)
            raise UnknownReplica(f"There is no service {service!r}; there are {known}.")
        chosen = [
            replica
            for replica in replicas.replicas
            if target is None or target in (replica.address, replica.name, _plain(replica.address))
        ]
        if not chosen:
            raise UnknownReplica(f"No replica of {service} is at {target!r}.")
        for replica in chosen:
            async for told in _drain(replica):
                yield told


async def _drain(replica: Replica) -> AsyncIterator[dict[str, JsonValue]]:
    target = _plain(replica.address)
    try:
        async for reply in replica.admin.Drain(admin_pb2.DrainRequest(), metadata=replica.bearer):
            running: list[JsonValue] = [
                {
                    "kind": work.kind,
                    "sessionId": work.session_id,
                    "effectId": work.effect_id,
                    "phase": work.phase,
                    "ageMs": work.age_ms,
                }
                for work in reply.in_flight
            ]
            yield {"target": target, "inFlight": running}
    except grpc.aio.AioRpcError as error:
        yield {"target": target, "error": f"The replica can't be asked to drain ({error.code().name})."}


def _facts(replica: Replica) -> dict[str, JsonValue]:
    known = replica.description
    facts: dict[str, JsonValue] = {
        "target": _plain(replica.address),
        "name": replica.name,
        "serving": replica.serving,
        "inFlight": replica.in_flight,
    }
    if replica.problem is not None and not replica.serving:
        facts["problem"] = replica.problem
    if known is not None:
        facts |= {
            "version": known.version,
            "instance": known.instance,
            "since": known.since,
            "apiMajor": known.api_major,
            "facts": {name: known.facts[name] for name in sorted(known.facts)},
        }
    stats = replica.stats
    if stats is not None:
        facts |= {
            "draining": stats.draining,
            "running": len(stats.in_flight),
            "counts": {name: stats.counts[name] for name in sorted(stats.counts)},
            "latencies": [
                {"kind": one.kind, "boundsMs": list(one.bounds_ms), "counts": list(one.counts)}
                for one in stats.latencies
            ],
        }
    return facts


def _plain(address: str) -> str:
    return address.removeprefix("ipv4:").removeprefix("ipv6:")
