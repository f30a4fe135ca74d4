"""One address of a service: its channel, whether it can take work, and what it says it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import admin_pb2, admin_pb2_grpc

from gateway.executors.timings import ExecutorTimings
from services.common.channel import bearer, open_channel
from services.common.logs import get_logger
from services.common.metadata import Metadata
from services.common.tls import CertificateFiles
from services.common.version import API_MAJOR

_SERVING = health_pb2.HealthCheckResponse.SERVING
_MARKS = (
    ("CERTIFICATE_VERIFY_FAILED", "Its certificate is expired, or not one of NYLORUN_GRPC_CA_FILE."),
    ("not found in peer certificate", "Its certificate is not for the host in the target."),
    ("Hostname Verification Check failed", "Its certificate is not for the host in the target."),
    ("andshake failed", "The TLS handshake fails."),
    ("onnection refused", "Nobody listens there."),
    ("No such file", "There is no such socket."),
)
_CONFIGURATION = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Replica:
    """A channel to one address and what is known of the process behind it.

    It takes calls when its health service says SERVING, it is a service of our kind and version, it lets
    our bearer in, and it has not gone silent.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        service: str,
        full_name: str,
        token: str | None,
        timings: ExecutorTimings,
        max_message_bytes: int,
        on_change: Callable[[], None],
        files: CertificateFiles | None = None,
        server_name: str | None = None,
    ) -> None:
        self.name = name
        """What hashes rank: the shard's name, else the address."""
        self.address = address
        self.bearer: Metadata = bearer(token)
        self._max_message_bytes = max_message_bytes
        self._files = files
        self._server_name = server_name
        self.channel = self._open()
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        self.callables: dict[str, Any] = {}
        """Callables of the channel by rpc: making one costs more than a call."""
        self.in_flight = 0
        self.idle = asyncio.Event()
        """No call of ours runs there."""
        self.idle.set()
        self.used = 0
        """When it was last chosen, in calls of its set."""
        self.description: admin_pb2.DescribeReply | None = None
        self.stats: admin_pb2.StatsReply | None = None
        self.problem: str | None = "It has not answered yet."
        self._service = service
        self._full_name = full_name
        self._timings = timings
        self._on_change = on_change
        self._healthy = False
        self._fading: asyncio.TimerHandle | None = None
        self._missed = 0
        self._complained: str | None = None
        self._asked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewing: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        self._quick_s: float | None = None
        self._serving = False
        self.closed = False

    @property
    def serving(self) -> bool:
        """New calls may go there."""
        return self._serving

    @property
    def facts(self) -> Mapping[str, str]:
        """What it said about itself; empty before it did."""
        return self.description.facts if self.description is not None else {}

    def why_not(self) -> str:
        """Why no new call may go there, in a sentence."""
        if self.stats is not None and self.stats.draining:
            return f"It drains; {len(self.stats.in_flight)} calls are left."
        return self.problem or "It does not serve."

    def quick_s(self) -> float | None:
        """Bound of a whole unary call where the service's limit is short; None where it is not, or unknown."""
        return self._quick_s

    def enter(self) -> None:
        """A call goes there."""
        self.in_flight += 1
        self.idle.clear()

    def leave(self) -> None:
        """A call there is over."""
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()

    def start(self) -> None:
        """Begins to watch it."""
        self._tasks = [
            asyncio.create_task(self._watch_health(), name=f"health of {self.address}"),
            asyncio.create_task(self._describe_again(), name=f"describe {self.address}"),
        ]

    def _open(self) -> grpc.aio.Channel:
        return open_channel(
            self.address,
            max_message_bytes=self._max_message_bytes,
            tls=None if self._files is None else self._files.pem,
            server_name=self._server_name,
        )

    def renew_channel(self) -> None:
        """Dials again with the newest certificates. The new channel takes over once it is connected; calls that
        run then end on the old one."""
        if self._renewing is not None:
            self._renewing.cancel()
        self._renewing = asyncio.create_task(self._renew(), name=f"new channel to {self.address}")

    async def _renew(self) -> None:
        channel = self._open()
        try:
            await channel.channel_ready()
        except asyncio.CancelledError:
            await channel.close(None)
            raise
        old, watch = self.channel, self._tasks[0]
        self.channel = channel
        self.admin = admin_pb2_grpc.AdminStub(channel)
        self.callables = {}
        self._tasks[0] = asyncio.create_task(self._watch_health(), name=f"health of {self.address}")
        watch.cancel()
        ending = asyncio.create_task(old.close(self._timings.certificates_end))
        self._ending[ending] = old
        ending.add_done_callback(lambda ended: self._ending.pop(ended, None))

    async def close(self) -> None:
        """Stops watching and ends every call on the channel."""
        channels = [*self._ending.values(), self.channel]
        tasks = [*self._tasks, *self._ending, *(() if self._renewing is None else (self._renewing,))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._settle_later(None)
        self._healthy = False
        self.closed = True
        self._settle()
        for channel in channels:
            await channel.close(None)

    def misconfigured(self, problem: str) -> None:
        """A call was refused for its credentials: no further one is sent until a poll gets through."""
        self._complain(problem)
        self._settle()

    async def _watch_health(self) -> None:
        stub = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service=self._full_name)
        while True:
            try:
                # Waiting for the channel starts nothing; it ends the moment the process listens.
                async for reply in stub.Watch(request, wait_for_ready=True):
                    self._settle_later(None)
                    self._set_healthy(reply.status == _SERVING)
            except grpc.aio.AioRpcError:
                pass
            # Connections end by age, too: a watch that is back at once has lost nothing.
            self._settle_later(self._timings.watch_grace)
            # Another process may be there next: ask it what it is.
            self._asked.set()
            await asyncio.sleep(self._timings.watch_pause)

    def _settle_later(self, seconds: float | None) -> None:
        if self._fading is not None:
            self._fading.cancel()
            self._fading = None
        if seconds is not None:
            self._fading = asyncio.get_running_loop().call_later(seconds, self._set_healthy, False)

    def _set_healthy(self, healthy: bool) -> None:
        if healthy and not self._healthy:
            # Whoever is there now is asked what it is before it gets work.
            self.description = None
            self._asked.set()
        self._healthy = healthy
        if not healthy:
            self.problem = "Its health service does not say SERVING."
        self._settle()

    async def _describe_again(self) -> None:
        while True:
            self._asked.clear()
            await self._describe()
            await self._ask_stats()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timings.describe_every):
                    await self._asked.wait()

    async def _describe(self) -> None:
        try:
            reply = await self.admin.Describe(
                admin_pb2.DescribeRequest(), metadata=self.bearer, timeout=self._timings.describe
            )
        except grpc.aio.AioRpcError as error:
            self._missed += 1
            if error.code() in _CONFIGURATION:
                self._complain(
                    "It refuses this gateway's bearer token."
                    if error.code() is grpc.StatusCode.UNAUTHENTICATED
                    else "It does not allow the names in this gateway's certificate."
                )
            elif self._missed >= self._timings.describe_failures and self._healthy:
                self._complain(f"It does not answer ({error.code().name}).")
            elif not self._healthy and error.code() is grpc.StatusCode.UNAVAILABLE:
                self.problem = _unreachable(error.details() or "")
            self._settle()
            return
        self._missed = 0
        if reply.api_major != API_MAJOR:
            self._complain(f"Its contract has the major version {reply.api_major}, not {API_MAJOR}.")
        elif reply.service != self._service:
            self._complain(f"It is a {reply.service or 'process without a name'}, not a {self._service}.")
        else:
            self.description = reply
            self._complained = None
            self._quick_s = _quick(reply.facts.get("limit_ms", ""), self._timings)
            if self._healthy:
                self.problem = None
        self._settle()

    async def _ask_stats(self) -> None:
        """What it does, for people: nothing depends on it."""
        self.stats = None
        if self.description is None:
            return
        with contextlib.suppress(grpc.aio.AioRpcError):
            self.stats = await self.admin.Stats(
                admin_pb2.StatsRequest(), metadata=self.bearer, timeout=self._timings.describe
            )

    def _complain(self, problem: str) -> None:
        """It answers and is of no use: said once, until it is fixed."""
        self.description = None
        self.problem = problem
        if problem != self._complained:
            self._complained = problem
            get_logger().error("service_refused", name=self._service, address=self.address, error=problem)

    def _settle(self) -> None:
        serving = self._healthy and self.description is not None
        if serving:
            self.problem = None
        if serving != self._serving:
            self._serving = serving
            self._on_change()


def _unreachable(details: str) -> str:
    """Why there is no connection. gRPC's own text is read and never shown."""
    return next((said for mark, said in _MARKS if mark in details), "It can't be reached.")


def _quick(limit_ms: str, timings: ExecutorTimings) -> float | None:
    if not (limit_ms.isascii() and limit_ms.isdigit()) or int(limit_ms[:10]) > timings.quick_limit * 1000:
        return None
    return max(timings.silence, int(limit_ms) / 1000 + timings.give_up)
