"""The model-executor process: settings in, executor and server built, served until it is stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services.common.process import run_process
from services.common.server import serve
from services.common.start import prepare_process
from services.common.telemetry import Telemetry
from services.model_executor.direct.route import DirectRoute
from services.model_executor.direct.store import CallStore
from services.model_executor.executor import ModelExecutor
from services.model_executor.gate.client import GateClient
from services.model_executor.gate.route import GateRoute
from services.model_executor.routes import Route, ScriptedRoute, UnusableRoute
from services.model_executor.service import ModelExecutorService
from services.model_executor.settings import SECRETS, Settings, SettingsError, read_settings

_EVERY_ADDRESS: Final = ("0.0.0.0", "[::]", "::", "*", "")


def make_route(settings: Settings, instance: str) -> Route:
    """The route that the settings name; `instance` names this process in a store."""
    if settings.script is not None:
        return ScriptedRoute(settings.script)
    if settings.gate is not None:
        gate = settings.gate
        client = GateClient(gate.url, silence_s=gate.silence_ms / 1000)
        return GateRoute(client, rejoins=gate.rejoins, renews=gate.renews)
    if settings.direct is not None:
        store = CallStore(Path(settings.state_file), caps=settings.direct.caps, instance=instance)
        return DirectRoute(settings.direct, store)
    return UnusableRoute(settings.route)


async def run(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Serves until `stop` is set. Raises StartFailed when it can't listen."""
    instance = secrets.token_hex(8)
    executor = ModelExecutor(make_route(settings, instance))

    def ready(address: str) -> None:
        executor.listens(reachable(address))
        if on_ready is not None:
            on_ready(address)

    await serve(ModelExecutorService(executor, instance), settings.server, stop, ready, telemetry)


def reachable(address: str) -> str:
    """An address that was listened on as others on this host may use it; empty for "every address"."""
    host = address.rpartition(":")[0]
    return "" if host in _EVERY_ADDRESS else address


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    telemetry = prepare_process(
        "model-executor",
        environ,
        log_level=settings.server.log_level,
        secrets=(*SECRETS, *(settings.direct.key_variables() if settings.direct is not None else ())),
        traced_as="harness-model",
    )
    return run_process(lambda stop: run(settings, stop, None, telemetry), uvloop=True)


if __name__ == "__main__":
    sys.exit(main(os.environ))
