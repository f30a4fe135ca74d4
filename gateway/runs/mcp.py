"""Prepares a run's MCP servers and settles which tools it has (harness-api 5.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.executors.contract import McpServers
from gateway.runs.effects import EffectPorts
from gateway.runs.manifests import SharedManifest
from protocol.jsjson import JsonValue
from protocol.methods import SessionMcpResult


@dataclass(frozen=True, slots=True)
class PreparedTools:
    """What core answered: it replaces the run's session tools and snapshot."""

    session_tools: Sequence[JsonValue]
    snapshot: JsonValue
    plain: bool


async def prepare_mcp(
    servers: McpServers, root_manifest: SharedManifest, ports: EffectPorts
) -> PreparedTools | None:
    """Opens the servers of the root manifest; None when nothing changes for the run.

    Raises RunAborted, ExecutionFailed, and HarnessApiError when core refuses.
    """
    if not root_manifest.declares_mcp_servers:
        return None
    run, signal = ports.run, ports.signal
    params: dict[str, JsonValue] = {"runId": run.run_id}
    if run.mcp_snapshot is None:
        discovery = await servers.discover(run, root_manifest.hash, signal)
        params["snapshot"] = discovery.snapshot
        params["diagnostics"] = list(discovery.diagnostics)
    else:
        diagnostics = await servers.reconnect(run, run.mcp_snapshot, signal)
        if not diagnostics:
            return None
        params["diagnostics"] = list(diagnostics)
    reply = await ports.ask("session.mcp", params)
    result: SessionMcpResult = reply.result
    return PreparedTools(result.session_tools, result.snapshot, reply.plain)
