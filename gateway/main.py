"""Puts the gateway together and runs it (operations 4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, cast

from gateway.attachment import Introduction
from gateway.engine.contract import Engine, SegmentInput
from gateway.engine.definitions import DefinitionCache
from gateway.engine.factory import make_engine
from gateway.executors.contract import Executors
from gateway.fleet import Fleet, ServicesHealth
from gateway.health import HOST, HealthPort
from gateway.link import Credentials, Link
from gateway.recording.recorder import Recorder
from gateway.runs.host import RunHost
from gateway.settings import GatewaySettings, without_userinfo
from gateway.timing import Timing
from gateway.view.port import ViewPort
from gateway.websocket import WebSocketDialer
from services.common import metrics
from services.common.logs import error_text, get_logger
from services.common.process import StartFailed
from services.common.telemetry import Telemetry
from services.common.version import version

TARGET_RELEASE: Final = "0.17.0-beta"
"""The release whose behaviour core may rely on."""

BACKENDS: Final = ("virtual",)
"""Workspace backends of a harness that is no pod (sandbox-manager 5.2)."""


async def run(
    settings: GatewaySettings,
    executors: Executors,
    services_health: ServicesHealth,
    stop: asyncio.Event,
    on_connected: Callable[[], None] | None = None,
    *,
    fleet: Fleet | None = None,
    telemetry: Telemetry | None = None,
    timing: Timing | None = None,
) -> None:
    """Serves core until `stop` is set, then gives every run back and closes.

    The caller owns `executors` and closes them afterwards. `on_connected` is called whenever `hello` was
    answered. Raises StartFailed when the health port or the view's can't be served or the folder of
    recordings not used.
    """
    timing = timing or Timing()
    recorder = _recorder(settings)
    host = RunHost(
        executors=executors,
        make_engine=_engine_maker(),
        timing=timing,
        telemetry=telemetry or Telemetry(),
        recorder=recorder,
    )
    link = Link(
        settings.harness_url,
        host,
        credentials=_static(settings.harness_token),
        dial=WebSocketDialer(timing),
        services=services_health,
        introduction=Introduction(
            "harness",
            f"{TARGET_RELEASE}+whippletree.{version()}",
            BACKENDS if executors.workspaces is not None else None,
        ),
        on_connected=on_connected or _nothing,
    )
    _log_start(settings)
    _show_metrics(link, services_health)
    serving = asyncio.create_task(link.run())
    try:
        view = None
        if settings.view_port is not None:
            view = ViewPort(settings.view_port, link, host.ended, fleet)
        async with (
            _health_port(HealthPort(settings.health_port, link, services_health, fleet)) as port,
            _view_port(view),
        ):
            get_logger().info("harness_ready", health=f"http://{HOST}:{port.bound_port}/health")
            await _until(stop, serving)
            await _stop(link, serving, settings.stop_grace_ms / 1000.0, timing)
    finally:
        serving.cancel()
        await asyncio.wait({serving}, timeout=timing.leftovers)
        await host.tasks.close(timing.leftovers)
        if recorder is not None:
            await asyncio.to_thread(recorder.close)


def _show_metrics(link: Link, services: ServicesHealth) -> None:
    """Gauges; each is read in a thread of its exporter's, whenever somebody asks."""

    def ready() -> list[tuple[float, dict[str, str]]]:
        missing = services.missing()
        return [(float(name not in missing), {"nylorun.service": name}) for name in services.in_flight()]

    def in_flight() -> list[tuple[float, dict[str, str]]]:
        return [(count, {"nylorun.service": name}) for name, count in services.in_flight().items()]

    observe = metrics.current.observe
    observe("nylorun.harness.connected", lambda: [(float(link.connected), {})])
    observe("nylorun.harness.draining", lambda: [(float(link.draining), {})])
    observe("nylorun.harness.runs.active", lambda: [(link.held, {})])
    observe("nylorun.harness.service.ready", ready)
    observe("nylorun.harness.service.in_flight", in_flight)


async def _until(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    """Waits for the stop. Raises what the serving loop failed with: it never ends by itself."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if serving.done():
        serving.result()


async def _stop(link: Link, serving: asyncio.Task[None], grace_s: float, timing: Timing) -> None:
    """Stops the link, in `grace_s` and what a close handshake takes at most. A fault while stopping is
    logged and never changes the exit code."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + grace_s
    try:
        await link.stop(grace_s)
        # A dial that is under way ends by itself, and its socket is closed at once.
        left_s = max(ends_at - loop.time(), timing.close_handshake)
        await asyncio.wait({serving}, timeout=left_s)
    except Exception as error:  # noqa: BLE001  (the process ends either way)
        get_logger().warning("harness_stop_failed", error=error_text(error))


def _engine_maker() -> Callable[[str, SegmentInput], Engine]:
    definitions = DefinitionCache()

    def make(kind: str, segment: SegmentInput) -> Engine:
        return make_engine(cast(Literal["agent", "flow"], kind), segment, definitions)

    return make


def _recorder(settings: GatewaySettings) -> Recorder | None:
    """The recorder of runs, when they are to be recorded. Raises StartFailed."""
    if settings.record_folder is None:
        return None
    try:
        recorder = Recorder.in_folder(
            settings.record_folder,
            max_file_bytes=settings.record_file_bytes,
            max_folder_bytes=settings.record_folder_bytes,
            made=f"whippletree {version()}",
        )
    except OSError as error:
        raise StartFailed(
            f"The folder {settings.record_folder} can't be used for recordings ({error.strerror or error}); "
            "set WHIPPLETREE_RECORD_DIR to another one, or leave it out."
        ) from None
    get_logger().info("harness_recording", folder=settings.record_folder)
    return recorder


@contextlib.asynccontextmanager
async def _health_port(port: HealthPort) -> AsyncIterator[HealthPort]:
    """The health port; its failure to start is one line for the operator."""
    try:
        await port.open()
    except OSError as error:
        raise StartFailed(
            f"The health port {HOST}:{port.bound_port} can't be served ({error.strerror or error}); "
            "set NYLORUN_HARNESS_HEALTH_PORT to another one."
        ) from None
    try:
        yield port
    finally:
        await port.close()


@contextlib.asynccontextmanager
async def _view_port(port: ViewPort | None) -> AsyncIterator[None]:
    """The port of the page for people, where it is wanted."""
    if port is None:
        yield
        return
    try:
        await port.open()
    except OSError as error:
        raise StartFailed(
            f"The view's port {HOST}:{port.bound_port} can't be served ({error.strerror or error}); "
            "set WHIPPLETREE_GATEWAY_VIEW_PORT to another one, or leave it out."
        ) from None
    get_logger().info("harness_view", url=f"http://{HOST}:{port.bound_port}/")
    try:
        yield
    finally:
        await port.close()


def _log_start(settings: GatewaySettings) -> None:
    gates = None if settings.gates_url is None else without_userinfo(settings.gates_url)
    get_logger().info(
        "host_stack_config",
        services=["harness"],
        harness=without_userinfo(settings.harness_url),
        gates=gates,
    )


def _static(token: str) -> Credentials:
    async def credentials() -> str:
        return token

    return credentials


def _nothing() -> None:
    return None
