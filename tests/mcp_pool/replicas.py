"""A gateway's client of mcp-pool replicas, and the runs that its tests make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.executors.contract import AbortSignal, RunContext
from gateway.executors.mcp import FULL_NAME, SERVICE, GrpcMcp
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.timings import ExecutorTimings
from services.common.channel import DEFAULT_MAX_MESSAGE_BYTES
from tests.common.support import until
from tests.executors.support import Target, run_of, tool_effect
from tests.mcp_pool.support import BOUND, manifest


class Gateway:
    """The client, and how many of its replicas are SERVING."""

    def __init__(self, replicas: ReplicaSet, timings: ExecutorTimings) -> None:
        self.replicas = replicas
        self.mcp = GrpcMcp(replicas, timings)
        self.effects = 0

    async def serving(self, count: int) -> None:
        """Waits until so many replicas take calls."""
        await until(lambda: len(self.replicas.serving()) == count)

    def home(self, session: str) -> str:
        """The address that a session's next run would choose."""
        chosen = self.replicas.ranked(session)
        assert chosen is not None
        return chosen.address.removeprefix("ipv4:")

    async def call(
        self,
        run: RunContext,
        tool: str,
        arguments: Any = None,
        *,
        server: str = "srv",
        signal: AbortSignal | None = None,
        effect_id: str | None = None,
    ) -> Any:
        """The outcome of one tool call of a run."""
        self.effects += 1
        effect = tool_effect(
            f"{server}__{tool}",
            "cap",
            effect_id=effect_id or f"effect-{self.effects}",
            input=arguments if arguments is not None else {},
        )
        record = {"capabilityId": "cap", "serverName": server, "serverToolName": tool}
        async with asyncio.timeout(BOUND):
            return (await self.mcp.call(record, effect, run, signal or AbortSignal(), False)).value


@asynccontextmanager
async def gateway(
    *addresses: str, token: str | None = None, timings: ExecutorTimings | None = None
) -> AsyncIterator[Gateway]:
    """A client of replicas at these addresses."""
    chosen = timings or ExecutorTimings()
    replicas = ReplicaSet(
        SERVICE,
        FULL_NAME,
        [Target(address, address) for address in addresses],
        token=token,
        timings=chosen,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
    )
    await replicas.open()
    try:
        yield Gateway(replicas, chosen)
    finally:
        await replicas.close()


def run_with(session: str, *servers: Mapping[str, Any], **changes: Any) -> RunContext:
    """A run of a session whose agent has these servers."""
    records = [
        {
            "capabilityId": "cap",
            "serverName": server["name"],
            "serverToolName": "echo",
            "name": f"{server['name']}__echo",
            "inputSchema": {"type": "object"},
        }
        for server in servers
    ]
    values: dict[str, Any] = {
        "session_id": session,
        "root_manifest": manifest(*servers),
        "mcp_snapshot": {"mcpTools": records},
        "plugin_roots": {},
    }
    return run_of(**values | changes)
