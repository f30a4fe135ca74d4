"""The split gateway's process: settings in, clients of the three services built, core served."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from gateway.executors.factory import connect
from gateway.main import run
from gateway.settings import SECRETS, GatewaySettings, SettingsError, read_settings
from services.common.process import run_process
from services.common.start import prepare_process
from services.common.telemetry import Telemetry


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    telemetry = prepare_process(
        "gateway", environ, log_level=settings.log_level, secrets=SECRETS, traced_as="harness"
    )
    return run_process(lambda stop: _run(settings, stop, telemetry), uvloop=True)


async def _run(settings: GatewaySettings, stop: asyncio.Event, telemetry: Telemetry) -> None:
    try:
        async with connect(
            settings.targets, settings.bearers, max_message_bytes=settings.max_message_bytes, tls=settings.tls
        ) as connected:
            await run(
                settings,
                connected.executors,
                connected.health,
                stop,
                fleet=connected.health,
                telemetry=telemetry,
            )
    finally:
        await telemetry.flush()
