"""The gateway and the three services in one process, joined over Unix sockets (operations 12.1).

It takes exactly the environment of the original harness process. The sockets stand in a folder of mode
0700, and each call carries a bearer that was made at start and is kept in memory: MCP servers and commands
run as the same user and could dial a socket without one.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import services.mcp_pool.main as mcp_pool
import services.mcp_pool.settings as mcp_settings
import services.model_executor.main as model_executor
import services.model_executor.settings as model_settings
import services.sandbox_manager.main as sandbox_manager
import services.sandbox_manager.settings as sandbox_settings
from gateway.executors.factory import connect
from gateway.main import run as run_gateway
from gateway.settings import SECRETS, GatewaySettings, SettingsError, Target, read_settings
from services.common.process import run_process
from services.common.start import prepare_process
from services.common.telemetry import SharedTelemetry, Telemetry
from services.common.tls import SETTINGS as TLS_SETTINGS

START_BOUND_S: Final = 60.0
Serve = Callable[[asyncio.Event, Callable[[str], None], Telemetry], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AllInOne:
    """What the process runs: the gateway's settings and how each service is served.

    `secrets` names what the environment must not hold any more once all of it is read.
    """

    gateway: GatewaySettings
    services: Mapping[str, Serve]
    targets: Mapping[str, tuple[Target, ...]]
    bearer: str
    secrets: tuple[str, ...]


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="whippletree-") as folder:
        try:
            parts = plan(environ, Path(folder))
        except SettingsError as error:
            print(error, file=sys.stderr)
            return 1
        telemetry = prepare_process(
            "harness", environ, log_level=parts.gateway.log_level, secrets=parts.secrets, traced_as="harness"
        )
        return run_process(lambda stop: _run(parts, stop, telemetry), uvloop=False)


def plan(environ: Mapping[str, str], folder: Path) -> AllInOne:
    """Reads all settings. Raises SettingsError; nothing is started."""
    gateway = read_settings(environ)
    bearer = secrets.token_hex(32)
    own = {
        name: value
        for name, value in environ.items()
        if name.removesuffix("_FILE") not in SECRETS and name not in TLS_SETTINGS
    }

    def environment(name: str) -> Mapping[str, str]:
        return own | {"NYLORUN_GRPC_LISTEN": _socket(folder, name), "NYLORUN_GRPC_TOKEN": bearer}

    model = model_settings.read_settings(environment("model-executor"))
    mcp = mcp_settings.read_settings(environment("mcp-pool"))
    sandbox = sandbox_settings.read_settings(environment("sandbox-manager"))
    services: dict[str, Serve] = {
        "model-executor": lambda stop, ready, traces: model_executor.run(model, stop, ready, traces),
        "mcp-pool": lambda stop, ready, traces: mcp_pool.run(mcp, stop, ready, traces),
        "sandbox-manager": lambda stop, ready, traces: sandbox_manager.run(sandbox, stop, ready, traces),
    }
    targets = {name: (Target(name, _socket(folder, name)),) for name in services}
    provider_keys = () if model.direct is None else model.direct.key_variables()
    return AllInOne(gateway, services, targets, bearer, (*SECRETS, *provider_keys))


def _socket(folder: Path, name: str) -> str:
    return f"unix:{folder / name}.sock"


async def _run(parts: AllInOne, stop: asyncio.Event, telemetry: Telemetry) -> None:
    services_stop = asyncio.Event()
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            serving = [_Serving(serve) for serve in parts.services.values()]
            for one in serving:
                group.create_task(one.run(services_stop, SharedTelemetry(telemetry)))
            async with asyncio.timeout(START_BOUND_S):
                for one in serving:
                    await one.ready.wait()
            await _serve_core(parts, stop, telemetry)
            services_stop.set()
    except BaseExceptionGroup as group_error:
        failure = _first(group_error)
    await telemetry.flush()
    if failure is not None:
        raise failure


class _Serving:
    """One service of this process."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event, telemetry: Telemetry) -> None:
        await self._serve(stop, lambda _address: self.ready.set(), telemetry)


async def _serve_core(parts: AllInOne, stop: asyncio.Event, telemetry: Telemetry) -> None:
    bearers = dict.fromkeys(parts.targets, parts.bearer)
    limit = parts.gateway.max_message_bytes
    async with connect(parts.targets, bearers, max_message_bytes=limit) as connected:
        await run_gateway(
            parts.gateway,
            connected.executors,
            connected.health,
            stop,
            fleet=connected.health,
            telemetry=telemetry,
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
