"""The Tool Gate's process: settings in, routes and connections built, served until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp
from aiohttp import web

from services.common.hosts import HostCheck
from services.common.logs import get_logger
from services.common.process import StartFailed, run_process
from services.common.start import prepare_process
from services.common.telemetry import Telemetry
from services.tool_gate.app import Gate, GateRoutes
from services.tool_gate.calls import KeyedCalls
from services.tool_gate.core import CoreSessions
from services.tool_gate.faults import Faults
from services.tool_gate.pool import UpstreamPool
from services.tool_gate.rows import CallRows, RowsFailed
from services.tool_gate.servers import Connector, ToolServers, load_opener
from services.tool_gate.settings import SECRETS, Settings, SettingsError, read_settings
from services.tool_gate.tokens import FileKeys, RunTokens, UrlKeys

REQUEST_S: Final = 660.0
"""What one request to the gate may take (mcp-pool 9.4)."""
FORGET_EVERY_S: Final = 3600.0
"""How often old answers are dropped from the file."""
_CLEANUP_S: Final = 2.0
"""What requests may take to end once their calls have."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a gate that serves is reached, with the port that was bound; `faults` and `pool` for tests."""

    url: str
    faults: Faults
    pool: UpstreamPool


async def run(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[Ready], None] | None = None,
    *,
    load_connector: Callable[[], Connector] | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Serves until `stop` is set, then drains. Raises StartFailed when it can't listen or open its file."""
    traces = telemetry or Telemetry()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(traces.flush)
        rows = CallRows(settings.database)
        stack.push_async_callback(rows.close)
        try:
            await rows.open()
            await rows.forget_old()
        except RowsFailed as error:
            raise StartFailed(f"WHIPPLETREE_TOOL_GATE_DB: {error}") from None
        http = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
        )
        pool = UpstreamPool(idle_s=settings.idle_s)
        stack.push_async_callback(pool.shut)
        faults = Faults(settings.faults)
        calls = KeyedCalls(rows, faults)
        hosts = HostCheck(settings.hosts)
        gate = Gate(
            hosts=hosts,
            tokens=RunTokens(
                UrlKeys(http, settings.keys_url) if settings.keys is None else FileKeys(settings.keys)
            ),
            sessions=CoreSessions(http, settings.core_url, settings.core_token),
            servers=ToolServers(
                pool,
                settings.config,
                load_connector or partial(load_opener, settings.request_s),
                telemetry=traces,
                traceparent=settings.traceparent,
            ),
            calls=calls,
            faults=faults,
            ready=lambda: not stop.is_set(),
            request_s=REQUEST_S,
            telemetry=traces,
        )
        runner = web.AppRunner(
            GateRoutes(gate).application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=_CLEANUP_S,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        port = await _listen(runner, settings)
        hosts.add_loopback(port)
        stack.push_async_callback(calls.drain, settings.drain_s)
        sweeping = (
            asyncio.create_task(pool.sweep_forever(settings.sweep_s)),
            asyncio.create_task(_forget(rows)),
        )
        for task in sweeping:
            stack.callback(task.cancel)
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{name}:{port}"
        get_logger().info("tool_gate_ready", url=url, faults=settings.faults)
        if on_ready is not None:
            on_ready(Ready(url, faults, pool))
        await stop.wait()
        faults.release()


async def _listen(runner: web.AppRunner, settings: Settings) -> int:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        raise StartFailed(
            f"{settings.host}:{settings.port} can't be listened on ({error.strerror or error}): "
            "set WHIPPLETREE_TOOL_GATE_LISTEN to another address."
        ) from None
    return int(runner.addresses[0][1])


async def _forget(rows: CallRows) -> None:
    while True:
        await asyncio.sleep(FORGET_EVERY_S)
        try:
            await rows.forget_old()
        except RowsFailed as error:
            get_logger().error("gate_rows_failed", error=str(error))


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    telemetry = prepare_process(
        "tool-gate",
        environ,
        log_level=settings.log_level,
        secrets=(*SECRETS, *settings.config.variables()),
        traced_as="tool-gate",
    )
    # It logs malformed requests with a piece of what came, which may be a token.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)
    return run_process(lambda stop: run(settings, stop, telemetry=telemetry), uvloop=False)


if __name__ == "__main__":
    sys.exit(main(os.environ))
