"""Builds the executors of a gateway from where its services are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.executors import mcp, model, sandbox
from gateway.executors.contract import Executors
from gateway.executors.fleet_view import ServiceSets
from gateway.executors.mcp import GrpcMcp
from gateway.executors.model import GrpcModelExecutor
from gateway.executors.replica_set import NamedTarget, ReplicaSet
from gateway.executors.sandbox import SandboxCalls
from gateway.executors.timings import ExecutorTimings
from gateway.executors.tools import GrpcToolExecutor
from gateway.executors.workspaces import GrpcWorkspaces
from services.common.channel import DEFAULT_MAX_MESSAGE_BYTES
from services.common.tls import CertificateFiles, TlsSettings

_FULL_NAMES: Final = {
    model.SERVICE: model.FULL_NAME,
    mcp.SERVICE: mcp.FULL_NAME,
    sandbox.SERVICE: sandbox.FULL_NAME,
}


@dataclass(frozen=True, slots=True)
class ConnectedExecutors:
    """The executors, and the services behind them as processes (`health` is a ServicesHealth and a Fleet)."""

    executors: Executors
    health: ServiceSets

    async def services_ready(self) -> None:
        """Waits until all services can take work. Unbounded: the caller bounds it."""
        await self.health.wait(True)


@contextlib.asynccontextmanager
async def connect(
    targets: Mapping[str, Sequence[NamedTarget]],
    bearers: Mapping[str, str],
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    timings: ExecutorTimings | None = None,
    tls: TlsSettings | None = None,
) -> AsyncIterator[ConnectedExecutors]:
    """Executors over gRPC, by service name (`model-executor`, `mcp-pool`, `sandbox-manager`).

    Each service has one target, the sandbox-manager one per shard. Targets are as in operations 12.3;
    `bearers` has the token of each service that asks for one. Nothing is waited for: channels are opened
    and watched, and calls wait for a missing service for 10 s. Leaving closes the channels; calls that
    still run there end. With `tls`, changed certificate files give new channels; running calls end on the old
    ones.

    Raises TargetInvalid, CertificatesUnusable, and KeyError for a service without a target.
    """
    chosen = timings or ExecutorTimings()
    files = None if tls is None else CertificateFiles(tls)
    sets = {
        service: ReplicaSet(
            service,
            full_name,
            targets[service],
            token=bearers.get(service),
            timings=chosen,
            max_message_bytes=max_message_bytes,
            sharded=service == sandbox.SERVICE,
            files=files,
        )
        for service, full_name in _FULL_NAMES.items()
    }
    pool: GrpcMcp | None = None
    following: asyncio.Task[None] | None = None
    try:
        for replicas in sets.values():
            await replicas.open()
        if files is not None:
            following = asyncio.create_task(_follow(files, list(sets.values()), chosen.certificates_every))
        models = GrpcModelExecutor(sets[model.SERVICE], chosen)
        pool = GrpcMcp(sets[mcp.SERVICE], chosen, on_grant=models.put_grant)
        calls = SandboxCalls(sets[sandbox.SERVICE], chosen)
        yield ConnectedExecutors(
            executors=Executors(
                model=models,
                tools=GrpcToolExecutor(pool, calls),
                mcp=pool,
                workspaces=GrpcWorkspaces(sets[sandbox.SERVICE], calls, chosen),
            ),
            health=ServiceSets(list(sets.values())),
        )
    finally:
        if pool is not None:
            await pool.close()
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        await asyncio.gather(*(replicas.close() for replicas in sets.values()))


async def _follow(files: CertificateFiles, sets: Sequence[ReplicaSet], every_s: float) -> None:
    """Gives every replica a new channel when the certificate files changed."""
    while True:
        await asyncio.sleep(every_s)
        if await asyncio.to_thread(files.changed):
            for replicas in sets:
                replicas.renew_channels()
