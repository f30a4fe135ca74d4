"""The mcp-pool process: settings in, pool and server built, served until it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

from services.common import metrics
from services.common.process import StartFailed, run_process
from services.common.server import serve
from services.common.start import prepare_process
from services.common.telemetry import Telemetry
from services.mcp_pool.connector import ServerConnector
from services.mcp_pool.descriptors import provide_descriptors
from services.mcp_pool.executor import McpExecutor
from services.mcp_pool.gate.client import GateClient
from services.mcp_pool.gate.connection import GateConnector
from services.mcp_pool.grants import Grants
from services.mcp_pool.leftovers import leave_trace
from services.mcp_pool.service import McpPoolService
from services.mcp_pool.settings import SECRETS, Settings, SettingsError, read_settings


def make_executor(settings: Settings) -> McpExecutor:
    """The pool that the settings describe. Raises StartFailed when its folders can't be made."""
    try:
        settings.root.create()
    except OSError as error:
        raise StartFailed(
            f"NYLORUN_HARNESS_ROOT: {settings.root.path} can't be used: {error.strerror}."
        ) from None
    provide_descriptors(settings.limits.connections)
    grants, gate = Grants(), None
    if settings.gates_url is not None:
        gate = GateClient(settings.gates_url, grants, silence_s=settings.limits.gate_silence)
    connector = ServerConnector(
        settings.root,
        settings.base_environment,
        settings.limits,
        None if gate is None else GateConnector(gate),
        traceparent=settings.traceparent,
    )
    return McpExecutor(connector, settings.limits, check_tools=settings.check_tools, grants=grants, gate=gate)


async def run(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Serves until `stop` is set. Raises StartFailed when it can't listen or has no folders."""
    executor = make_executor(settings)
    trace = leave_trace(settings.root)
    executor.start()
    _show_metrics(executor)
    await serve(McpPoolService(executor), settings.server, stop, on_ready, telemetry)
    # Not when it raises: then the next start looks for what may be left.
    trace.remove()


def _show_metrics(executor: McpExecutor) -> None:
    metrics.current.observe("nylorun.mcp.children", lambda: [(executor.children, {})])
    metrics.current.observe(
        "nylorun.mcp.connections",
        lambda: [(n, {"network.transport": name}) for name, n in executor.pool.transports().items()],
    )


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    telemetry = prepare_process(
        "mcp-pool", environ, log_level=settings.server.log_level, secrets=SECRETS, traced_as="harness-mcp"
    )
    return run_process(lambda stop: run(settings, stop, None, telemetry), uvloop=False)


if __name__ == "__main__":
    sys.exit(main(os.environ))
