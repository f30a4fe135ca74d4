"""`whippletree healthcheck`: one question to a process on this machine, for container health checks.

Containers ask every few seconds, so nothing is imported that the question at hand can do without.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

TIMEOUT_S: Final = 3.0
LOOPBACK: Final = "127.0.0.1"
_MOST_BYTES: Final = 64 * 1024


class Unhealthy(Exception):
    """The process doesn't work, or doesn't answer; the text says which."""


class GrpcService(NamedTuple):
    """A service behind gRPC: its full name and its usual port."""

    full_name: str
    port: int


GRPC_SERVICES: Final[Mapping[str, GrpcService]] = {
    "model-executor": GrpcService("whippletree.v1.ModelExecutor", 4410),
    "mcp-pool": GrpcService("whippletree.v1.McpPool", 4420),
    "sandbox-manager": GrpcService("whippletree.v1.SandboxManager", 4430),
}


def run_healthcheck(service: str | None, *, alive: bool = False) -> int:
    """The exit code: 0 healthy, 1 not (the reason on stderr)."""
    try:
        check(service, os.environ, alive=alive)
    except Unhealthy as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def check(service: str | None, environ: Mapping[str, str], *, alive: bool = False) -> None:
    """Raises Unhealthy unless the service works. Without a name: the harness when it is configured here,
    else the first of the three services that listens. `alive`: a gateway that answers is enough, connected or
    not; to the others it makes no difference."""
    if service in ("harness", "gateway", "all-in-one") or (
        service is None and environ.get("NYLORUN_HARNESS_URL")
    ):
        _check_gateway(environ, alive=alive)
    elif service == "dev-core":
        _check_core(environ)
    elif service == "tool-gate":
        _check_gate(environ)
    elif service is None:
        _check_any(environ)
    elif service in GRPC_SERVICES:
        _check_grpc(GRPC_SERVICES[service], environ)
    else:
        known = ", ".join(("harness", *GRPC_SERVICES, "dev-core", "tool-gate"))
        raise Unhealthy(f"There is no service '{service}'; there are {known}.")


def _check_gateway(environ: Mapping[str, str], *, alive: bool) -> None:
    port = environ.get("NYLORUN_HARNESS_HEALTH_PORT", "").strip() or "4300"
    answer = _get_json(f"{LOOPBACK}:{port}", "/health")
    if answer.get("connected") is not True and not alive:
        raise Unhealthy("The gateway runs, but is not connected to its core; its log says why.")


def _check_core(environ: Mapping[str, str]) -> None:
    listen = environ.get("WHIPPLETREE_CORE_HTTP_LISTEN", "").strip() or f"{LOOPBACK}:4000"
    _get_json(_local(listen), "/health")


def _check_gate(environ: Mapping[str, str]) -> None:
    listen = environ.get("WHIPPLETREE_TOOL_GATE_LISTEN", "").strip() or f"{LOOPBACK}:4100"
    _get_json(_local(listen), "/ready")


def _check_any(environ: Mapping[str, str]) -> None:
    for service in GRPC_SERVICES.values():
        try:
            _check_grpc(service, environ)
        except _WrongService:
            continue
        return
    raise Unhealthy("None of the three services answers on this machine; name one with --service.")


class _WrongService(Unhealthy):
    pass


def _check_grpc(service: GrpcService, environ: Mapping[str, str]) -> None:
    listen = environ.get("NYLORUN_GRPC_LISTEN", "").strip() or f"{LOOPBACK}:{service.port}"
    target = listen if listen.startswith("unix:") else _local(listen)

    import services.common.grpc_env  # noqa: F401  (before grpc)

    # isort: split
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with _channel(target, environ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service.full_name), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                raise _WrongService(f"{service.full_name} does not answer at {target}.") from error
            raise Unhealthy(f"{service.full_name} at {target} answers {code.name}.") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unhealthy(f"{service.full_name} at {target} takes no work at the moment.")


def _channel(target: str, environ: Mapping[str, str]) -> Any:
    import grpc

    mode = environ.get("NYLORUN_GRPC_TLS", "").strip()
    if mode not in ("tls", "mtls") or target.startswith("unix:"):
        return grpc.insecure_channel(target)
    from cli.own_certificate import OwnCertificateUnusable, own_channel

    try:
        return own_channel(target, environ, mutual=mode == "mtls")
    except OwnCertificateUnusable as error:
        raise Unhealthy(str(error)) from error


def _local(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    return f"{LOOPBACK if host in ('', '0.0.0.0', '[::]', '*') else host}:{port}"


def _get_json(address: str, path: str) -> dict[str, object]:
    """The document behind a path. HTTP/1.0: the answer is not chunked and ends with the connection."""
    host, _, port = address.rpartition(":")
    request = f"GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
            connection.sendall(request.encode("ascii"))
            answer = _read_all(connection)
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise ValueError("not a good answer")
        document = json.loads(body)
    except (OSError, ValueError) as error:
        raise Unhealthy(f"http://{address}{path} does not answer.") from error
    if not isinstance(document, dict):
        raise Unhealthy(f"http://{address}{path} answers something else than a health report.")
    return document


def _read_all(connection: socket.socket) -> bytes:
    """What comes until the end, at most 64 KiB and some 3 s between two pieces."""
    pieces, size = [], 0
    while size < _MOST_BYTES and (piece := connection.recv(_MOST_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
