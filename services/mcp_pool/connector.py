"""From a declaration to a connection: stdio servers are started, remote ones are the Tool Gate's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from services.common.group_keeper import GroupKeepers
from services.mcp_pool.connection import Connecting, Connection, Connector
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.failures import McpFailure
from services.mcp_pool.launch import HarnessRoot, plan_launch
from services.mcp_pool.limits import Limits
from services.mcp_pool.session import PoolKey
from services.mcp_pool.shares import Shares
from services.mcp_pool.stdio import StdioConnection

NO_GATE: Final = (
    "Remote MCP servers are reached only through the gates service, and NYLORUN_GATES_URL is not set. "
    "Where no Nylorun stack has one, `whippletree tool-gate` is one."
)


class ServerConnector:
    """Makes connections for declared servers (mcp-pool 7.2).

    `base` is what every server gets of this process's environment (launch.base_environment). `gate` makes
    the connections of remote servers; without one they fail. `traceparent`: stdio servers are told the trace
    of a call in its `_meta`.
    """

    def __init__(
        self,
        root: HarnessRoot,
        base: Mapping[str, str],
        limits: Limits,
        gate: Connector | None = None,
        *,
        traceparent: bool = False,
    ) -> None:
        self._root = root
        self._base = dict(base)
        self._limits = limits
        self._gate = gate
        self._traceparent = traceparent
        self._children: set[StdioConnection] = set()
        self._shares = Shares()
        self.keeper = GroupKeepers(root.mark)
        """Ends the groups of stdio servers should this process be killed."""

    @property
    def children(self) -> int:
        """Stdio servers that were started and are not yet gone with their groups."""
        return len(self._children)

    async def close(self) -> None:
        """Ends what its connections share, after them."""
        await self.keeper.close()

    def connect(
        self, key: PoolKey, server: DeclaredServer, on_end: Callable[[Connection], None]
    ) -> Connecting:
        """See connection.Connector."""
        if not server.is_stdio:
            if self._gate is None:
                raise McpFailure(NO_GATE)
            return self._gate.connect(key, server, on_end)
        connection = StdioConnection(
            self._limits,
            on_end,
            self.keeper,
            self._children.discard,
            traceparent=self._traceparent,
            shares=self._shares,
        )

        async def opening() -> None:
            launch = plan_launch(server, self._root, self._base)
            self._children.add(connection)
            await connection.open(launch)

        return Connecting(connection, opening)
