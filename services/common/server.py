"""The gRPC server that every service runs in: one port with the service, Admin, health and reflection.

Listening: `host:port` or `unix:/path`. TCP without a token is refused at start; a Unix socket may do
without one when its folder is closed to others (operations 12.4). Draining follows operations 12.10.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from whippletree.v1 import admin_pb2_grpc

from services.common import admin, metrics
from services.common.auth import BearerCheck
from services.common.edge import Edge
from services.common.logs import error_text, get_logger
from services.common.process import StartFailed
from services.common.served import HasCloseTime, HasReadiness, HasWork, ServedService
from services.common.settings import Environment, refuse_foreign
from services.common.telemetry import Telemetry
from services.common.tls import (
    CLIENTS,
    CertificateFiles,
    CertificatesUnusable,
    TlsSettings,
    read_tls,
    server_credentials,
)

MIB: Final = 1024 * 1024
DEFAULT_MAX_MESSAGE_BYTES: Final = 64 * MIB + MIB
"""A document of 64 MiB and room for what is around it."""

_TOKEN: Final = "NYLORUN_GRPC_TOKEN"
SECRETS: Final = (_TOKEN,)
_UNIX: Final = "unix:"
_OPEN_PORT: Final = f"a TCP port is never served without a token, or mtls with {CLIENTS}."
_CLOSE_SHARE: Final = 1 / 3
"""The part of the stop grace that is kept for closing children and sandboxes, where a service does not say."""
_MOST_CLOSE_S: Final = 20.0
"""The most that is kept so: a long grace is for long calls."""
_LEAST_CALLS_SHARE: Final = 1 / 3
"""The part of the stop grace that calls in flight have in any case."""
_HANDLER_END_S: Final = 2.0
"""How long a cancelled handler may take in its own `finally`."""


_MAIN_KINDS: Final = {
    "model-executor": {"model": 0},
    "mcp-pool": {"mcp": 0},
    "sandbox-manager": {"sandbox": 0},
}


def calls_share_s(grace_s: float, close_s: float | None) -> float:
    """Of a stop's seconds, those that calls in flight may take.

    `close_s`: what closing the service may take at worst, with the end of cancelled handlers; None: a third, at
    most 20 s.
    """
    needed = (
        min(grace_s * _CLOSE_SHARE, _MOST_CLOSE_S)
        if close_s is None
        else close_s + min(_HANDLER_END_S, grace_s * _CLOSE_SHARE / 2)
    )
    return max(grace_s - needed, grace_s * _LEAST_CALLS_SHARE)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a service listens.

    `listen` is `host:port` or `unix:/path`; `token` is a comma list of bearers or None (Unix sockets, and mTLS
    with allowed clients); `tls` counts for TCP;
    `max_message_bytes` bounds both directions; times are milliseconds.
    """

    listen: str
    token: str | None = field(repr=False)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    reflection: bool = True
    stop_grace_ms: int = 15_000
    drain_delay_ms: int = 0
    log_level: str = "info"
    tls: TlsSettings | None = None

    @property
    def unix_path(self) -> str | None:
        """The socket's path, or None for TCP."""
        return self.listen[len(_UNIX) :] if self.listen.startswith(_UNIX) else None


def read_server_settings(env: Environment, default_listen: str) -> ServerSettings:
    """Reads what every service reads; problems are noted in `env` (operations 12.3)."""
    refuse_foreign(env)
    if env.text("NYLORUN_HARNESS_TOKEN") or env.text("NYLORUN_HARNESS_TOKEN_FILE"):
        env.problem("NYLORUN_HARNESS_TOKEN belongs to the gateway; this process refuses to start with it.")
    listen = env.text("NYLORUN_GRPC_LISTEN", default_listen) or default_listen
    token = env.hex_token(_TOKEN, several=True)
    tls = read_tls(env, "server")
    if listen.startswith(_UNIX):
        if not listen[len(_UNIX) :].startswith("/"):
            env.problem("NYLORUN_GRPC_LISTEN must name an absolute path after unix:.")
    elif not _is_host_port(listen):
        env.problem("NYLORUN_GRPC_LISTEN must be host:port or unix:/path.")
    elif token is None and not _knows_clients(tls) and not any(_TOKEN in problem for problem in env.problems):
        env.problem(f"{_TOKEN} is required: {_OPEN_PORT}")
    return ServerSettings(
        listen=listen,
        token=token,
        max_message_bytes=env.integer(
            "NYLORUN_GRPC_MAX_MESSAGE_BYTES", DEFAULT_MAX_MESSAGE_BYTES, 64 * 1024, 2**31 - 1
        ),
        reflection=env.flag("NYLORUN_GRPC_REFLECTION", True),
        stop_grace_ms=env.integer("NYLORUN_STOP_GRACE_MS", 15_000, 100, 3_600_000),
        drain_delay_ms=env.integer("NYLORUN_DRAIN_DELAY_MS", 0, 0, 600_000),
        log_level=env.choice("NYLORUN_LOG_LEVEL", ("info", "debug"), "info"),
        tls=tls,
    )


def _knows_clients(tls: TlsSettings | None) -> bool:
    """Without a token a client is known by its certificate. One of the CA is not enough: children of a
    service may be able to read that service's own."""
    return tls is not None and tls.mutual and bool(tls.allowed_clients)


def _is_host_port(listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port[-6:]) <= 65535


def server_options(settings: ServerSettings) -> list[tuple[str, int]]:
    """gRPC's options of a port (operations 12.8)."""
    options = [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # The widely copied min_recv_… name is ignored, and clients that ping are then cut off mid-call.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Two processes on one port would share its calls without a word.
        ("grpc.so_reuseport", 0),
    ]
    if settings.unix_path is None:
        # For clients that ask DNS only when a connection ends; the grace outlasts the longest call.
        options += [("grpc.max_connection_age_ms", 45_000), ("grpc.max_connection_age_grace_ms", 2_000_000)]
    return options


class Port:
    """A started server. `address` is where it listens; `stop` drains and ends it."""

    def __init__(self, service: ServedService, settings: ServerSettings, telemetry: Telemetry) -> None:
        self._service = service
        self._settings = settings
        clients = settings.tls.allowed_clients if settings.tls and settings.unix_path is None else ()
        self._edge = Edge(BearerCheck(settings.token), telemetry.server_span, clients)
        self._server = grpc.aio.server(handlers=[self._edge], options=server_options(settings))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._drainer = admin.Drainer(service)
        self._drainer.on_enter.append(self._say_not_serving)
        self._ready = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = settings.listen
        self._show_metrics()

    def _show_metrics(self) -> None:
        service, own = self._service, {"nylorun.service": self._service.service}
        idle = _MAIN_KINDS.get(service.service, {})
        metrics.current.observe("nylorun.service.draining", lambda: [(float(self._drainer.draining), own)])
        if isinstance(service, HasWork):
            work = service.work
            metrics.current.observe(
                "nylorun.service.in_flight",
                # A series that is missing is no zero to an autoscaler: the main kind is always there.
                lambda: [
                    (n, {**own, "nylorun.work.kind": kind}) for kind, n in (idle | work.kinds()).items()
                ],
            )

    async def start(self) -> None:
        """Listens. Raises StartFailed with the reason."""
        service, handlers = self._service, self._edge.as_server
        if isinstance(service, HasReadiness):
            service.bind_readiness(self._set_ready)
        service.register(handlers)
        admin_pb2_grpc.add_AdminServicer_to_server(admin.AdminServicer(service, self._drainer), handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, handlers)
        if self._settings.reflection:
            from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

            names = (service.full_name, admin.FULL_NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflector = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflector, handlers)
        self._listen()
        await self._server.start()
        path = self._settings.unix_path
        if path is not None:
            # gRPC makes the socket open to all; its folder closed the moment in between.
            Path(path).chmod(0o600)  # noqa: ASYNC240  (once, at start)
        await self._publish()

    def _listen(self) -> None:
        path = self._settings.unix_path
        if path is not None:
            self._check_folder(Path(path))
        elif self._settings.token is None and not _knows_clients(self._settings.tls):
            raise StartFailed(f"{self._settings.listen}: {_OPEN_PORT}")
        tls = self._settings.tls if path is None else None
        try:
            if tls is None:
                port = self._server.add_insecure_port(self._settings.listen)
            else:
                credentials = server_credentials(CertificateFiles(tls), mutual=tls.mutual)
                port = self._server.add_secure_port(self._settings.listen, credentials)
        except CertificatesUnusable as error:
            raise StartFailed(str(error)) from None
        except RuntimeError as error:
            raise StartFailed(
                f"Can't listen on {self._settings.listen}; is it in use? NYLORUN_GRPC_LISTEN names the address."
            ) from error
        if path is None:
            self.address = f"{self._settings.listen.rpartition(':')[0]}:{port}"

    def _check_folder(self, path: Path) -> None:
        try:
            mode = path.parent.stat()
        except OSError as error:
            raise StartFailed(f"The folder of {path} can't be used: {error.strerror}.") from error
        if mode.st_uid != os.getuid() or stat.S_IMODE(mode.st_mode) & 0o077:
            raise StartFailed(f"The folder of {path} must belong to this user and have mode 0700.")

    async def stop(self) -> None:
        """Drains, waits for calls within the stop grace, closes the service, ends the server."""
        settings, logger = self._settings, get_logger()
        grace_s = settings.stop_grace_ms / 1000
        logger.info("grpc_draining", address=self.address, inFlight=len(self._service.in_flight()))
        await self._drainer.enter(settings.drain_delay_ms / 1000)
        deadline = asyncio.get_running_loop().time() + grace_s
        close_s = self._service.close_s if isinstance(self._service, HasCloseTime) else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(calls_share_s(grace_s, close_s)):
                await self._edge.wait_idle()
        # Cancels what is left: calls past the grace, health watches, drains. The server's stop returns
        # while a cancelled handler is still in its `finally`, so the handlers are waited for as well.
        await self._server.stop(0)
        end_s = min(_HANDLER_END_S, grace_s * _CLOSE_SHARE / 2)
        try:
            async with asyncio.timeout(end_s):
                await self._edge.wait_idle()
        except TimeoutError:
            logger.warning("grpc_handlers_left", error=f"{self._edge.running()} handlers did not end")
        try:
            async with asyncio.timeout_at(max(deadline, asyncio.get_running_loop().time() + 0.05)):
                await self._service.close()
        except TimeoutError:
            logger.warning("service_close_timeout", error="closing took longer than the stop grace")
        for task in self._tasks:
            task.cancel()

    def _set_ready(self, ready: bool) -> None:
        self._ready = ready
        with contextlib.suppress(RuntimeError):  # before the loop runs: `start` publishes it
            task = asyncio.get_running_loop().create_task(self._publish())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _publish(self) -> None:
        serving = self._ready and not self._drainer.draining
        status = health_pb2.HealthCheckResponse.SERVING if serving else _NOT_SERVING
        await self._health.set(self._service.full_name, status)

    async def _say_not_serving(self) -> None:
        await self._health.set(self._service.full_name, _NOT_SERVING)


_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


async def serve(
    service: ServedService,
    settings: ServerSettings,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Serves until `stop` is set, then drains. Raises StartFailed when it can't listen.

    `on_ready` gets the address once calls are taken (`host:port` with the real port, or `unix:/path`).
    The service is closed on every way out.
    """
    port = Port(service, settings, telemetry or Telemetry())
    try:
        await port.start()
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            await service.close()
        raise
    get_logger().info("grpc_serving", address=port.address, name=service.full_name)
    try:
        if on_ready is not None:
            on_ready(port.address)
        await stop.wait()
    finally:
        await _finish(port, telemetry)


async def _finish(port: Port, telemetry: Telemetry | None) -> None:
    stopping = asyncio.ensure_future(port.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await asyncio.wait([stopping], timeout=_HANDLER_END_S)
        stopping.cancel()
        raise
    except Exception as error:  # noqa: BLE001  (the end of the process must be reached)
        get_logger().warning("grpc_stop_failed", error=error_text(error))
    if telemetry is not None:
        await telemetry.flush()
