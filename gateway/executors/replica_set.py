"""The replicas of one service: who is there, and which one gets a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

from gateway.executors import rendezvous
from gateway.executors.replica import Replica
from gateway.executors.targets import DnsName, read_target, resolve
from gateway.executors.timings import ExecutorTimings
from services.common.logs import get_logger
from services.common.tls import CertificateFiles


class NamedTarget(Protocol):
    """Where a service, or a shard of it, is reached."""

    @property
    def name(self) -> str:
        """A stable name."""
        ...

    @property
    def target(self) -> str:
        """A gRPC target."""
        ...


class ReplicaSet:
    """All replicas of a service.

    With `sharded`, each target is one shard of a stable name, and the service is there only while all of
    them are; otherwise one target gives all replicas, and one that is SERVING is enough.
    """

    def __init__(
        self,
        service: str,
        full_name: str,
        targets: Sequence[NamedTarget],
        *,
        token: str | None,
        timings: ExecutorTimings,
        max_message_bytes: int,
        sharded: bool = False,
        files: CertificateFiles | None = None,
    ) -> None:
        self.service = service
        self.full_name = full_name
        self.sharded = sharded
        self.replicas: list[Replica] = []
        self._targets = targets
        self._token = token
        self._timings = timings
        self._max_message_bytes = max_message_bytes
        self._files = files
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self._was_ready = False
        self._closing = False
        self._choices = 0

    # Life.

    async def open(self) -> None:
        """Opens channels to what the targets name now and follows their changes."""
        for target in self._targets:
            addresses = read_target(target.target)
            if isinstance(addresses, DnsName):
                self._spawn(self._follow(target, addresses))
            else:
                for address in addresses.addresses:
                    self._add(target.name if self.sharded else address, address, None)

    async def close(self) -> None:
        """Closes every channel; calls in flight end."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        replicas, self.replicas = self.replicas, []
        for replica in replicas:
            await replica.close()

    def renew_channels(self) -> None:
        """The certificate files changed: every replica gets a new channel."""
        for replica in self.replicas:
            replica.renew_channel()

    # What is there.

    @property
    def ready(self) -> bool:
        """The service can take work."""
        if self.sharded:
            names = {target.name for target in self._targets}
            return names <= {replica.name for replica in self.replicas if replica.serving}
        return any(replica.serving for replica in self.replicas)

    def reason(self) -> str:
        """Why the service can't take work: what is wrong with each replica, or that there is none."""
        found = [
            f"{replica.name if self.sharded else replica.address}: {replica.why_not()}"
            for replica in self.replicas
            if not replica.serving
        ]
        known = {replica.name for replica in self.replicas}
        for target in self._targets:
            if not self.replicas or (self.sharded and target.name not in known):
                found.append(f"{target.target} has no address.")
        return " ".join(found)

    def serving(self) -> list[Replica]:
        """Replicas that take new calls."""
        return [replica for replica in self.replicas if replica.serving]

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` whenever something about a replica changed; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Who gets a call.

    def idlest(self, without: Collection[Replica] = ()) -> Replica | None:
        """The serving replica with the fewest calls in flight; among equals the one that waited longest."""
        candidates = self.serving()
        if without:
            candidates = [replica for replica in candidates if replica not in without] or candidates
        if not candidates:
            return None
        replica = candidates[0]
        if len(candidates) > 1:
            replica = min(candidates, key=lambda candidate: (candidate.in_flight, candidate.used))
        self._choices += 1
        replica.used = self._choices
        return replica

    def ranked(self, key: str, without: Collection[Replica] = ()) -> Replica | None:
        """The serving replica that a key belongs to."""
        candidates = [replica for replica in self.serving() if replica not in without] or self.serving()
        return max(candidates, key=lambda replica: rendezvous.rank(replica.name, key), default=None)

    def called(self, instance: str, address: str) -> Replica | None:
        """The replica that says it is this instance, else the one at this address; None while there is neither.

        Only replicas of the configured targets: nobody else gets a call because a service named it.
        """
        by_instance = [
            replica
            for replica in self.replicas
            if replica.description is not None and replica.description.instance == instance
        ]
        names = (address, f"ipv4:{address}", f"ipv6:{address}")
        by_address = [replica for replica in self.replicas if address and replica.address in names]
        return next(iter(by_instance or by_address), None)

    @property
    def shard_names(self) -> list[str]:
        """The configured shards, in order."""
        return [target.name for target in self._targets]

    def shard_name(self, key: str) -> str:
        """The shard that a key belongs to, by the configured names whether or not it is there.

        Raises UnicodeEncodeError for a key with a lone surrogate.
        """
        name = rendezvous.choose(self.shard_names, key)
        assert name is not None, "a sharded service has at least one target"
        return name

    def shard_called(self, name: str) -> Replica | None:
        """The replica of a shard; None while its address is not known."""
        return next((replica for replica in self.replicas if replica.name == name), None)

    # Inside.

    def _add(self, name: str, address: str, host: str | None) -> None:
        replica = Replica(
            name,
            address,
            service=self.service,
            full_name=self.full_name,
            token=self._token,
            timings=self._timings,
            max_message_bytes=self._max_message_bytes,
            on_change=self._notice,
            files=self._files,
            server_name=host,
        )
        self.replicas.append(replica)
        replica.start()
        self._notice()

    async def _follow(self, target: NamedTarget, name: DnsName) -> None:
        """Keeps a channel to each address that a DNS name has."""
        known: dict[str, Replica] = {}
        failing = False
        while True:
            try:
                found = await resolve(name)
                failing = False
            except OSError as error:
                found = tuple(known)
                if not failing:
                    failing = True
                    get_logger().warning(
                        "service_not_resolved", name=self.service, host=name.host, error=str(error)
                    )
            if self.sharded:
                found = found[:1]
            for address in [address for address in known if address not in found]:
                replica = known.pop(address)
                if replica in self.replicas:
                    self.replicas.remove(replica)
                self._spawn(self._retire(replica))
            for address in found:
                if address not in known:
                    self._add(target.name if self.sharded else address, address, name.host)
                    known[address] = self.replicas[-1]
            await asyncio.sleep(self._timings.resolve_every)

    async def _retire(self, replica: Replica) -> None:
        """Lets the calls on an address that DNS forgot end, then closes it."""
        try:
            self._notice()
            await replica.idle.wait()
        finally:
            await replica.close()

    def _notice(self) -> None:
        ready = self.ready
        if ready != self._was_ready and not self._closing:
            if ready:
                get_logger().info("service_back", name=self.service)
            else:
                get_logger().warning("service_lost", name=self.service)
            self._was_ready = ready
        for listener in list(self._listeners):
            listener()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
