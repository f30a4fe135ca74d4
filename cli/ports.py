"""The ports that `up` and `demo` use."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

HOST = "127.0.0.1"
_OURS = range(20_000, 32_000)
_ATTEMPTS = 1000
_given: set[int] = set()


class PortError(Exception):
    """An address is taken or not understood; the text names it and its setting."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One TCP port on 127.0.0.1 for each listener."""

    core_http: int = 4000
    core_harness: int = 4200
    model_executor: int = 4410
    mcp_pool: int = 4420
    sandbox_manager: int = 4430
    health: int = 4300
    tool_gate: int = 4100


SETTINGS = {
    "core_http": "WHIPPLETREE_CORE_HTTP_LISTEN",
    "core_harness": "WHIPPLETREE_CORE_HARNESS_LISTEN",
    "model_executor": "WHIPPLETREE_MODEL_EXECUTOR_LISTEN",
    "mcp_pool": "WHIPPLETREE_MCP_POOL_LISTEN",
    "sandbox_manager": "WHIPPLETREE_SANDBOX_MANAGER_LISTEN",
    "health": "NYLORUN_HARNESS_HEALTH_PORT",
    "tool_gate": "WHIPPLETREE_TOOL_GATE_LISTEN",
}
"""The setting that moves each listener of `up`: 127.0.0.1:PORT, for `health` a port alone."""


def ports_from(environ: Mapping[str, str]) -> Ports:
    """The ports that `up` uses. Raises PortError when a setting is not a loopback address with a port."""
    ports = Ports()
    for name, setting in SETTINGS.items():
        text = environ.get(setting, "").strip()
        if not text:
            continue
        host, _, digits = text.rpartition(":")
        port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else 0
        if host not in ("", HOST, "localhost") or not 1 <= port <= 65535:
            example = "4300" if name == "health" else f"{HOST}:{getattr(Ports(), name)}"
            raise PortError(
                f"{setting} is '{text}', but `up` listens on this machine alone: write {example} or another port."
            )
        ports = replace(ports, **{name: port})
    taken: dict[int, str] = {}
    for field in fields(ports):
        port = getattr(ports, field.name)
        if port in taken:
            raise PortError(
                f"{SETTINGS[field.name]} and {SETTINGS[taken[port]]} both name port {port}; change one of them."
            )
        taken[port] = field.name
    return ports


def check_free(ports: Ports, *, unused: Collection[str] = ()) -> None:
    """Raises PortError that names the first port in use and its setting; `unused` are not looked at."""
    for field in fields(ports):
        if field.name in unused:
            continue
        port = getattr(ports, field.name)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                why = (
                    "is in use by another program"
                    if error.errno == errno.EADDRINUSE
                    else f"can't be used ({error.strerror})"
                )
                raise PortError(
                    f"Port {port} on {HOST} {why}. "
                    f"Stop that program, or choose another port with {SETTINGS[field.name]}."
                ) from error


def free_ports() -> Ports:
    """Ports that nobody uses at this moment, none of which this process was given before.

    They lie below those that the system gives to outgoing connections, so that no connection takes one before
    it is listened on. Raises PortError when none is found.
    """
    return Ports(**{field.name: _free_port() for field in fields(Ports)})


def _free_port() -> int:
    for _ in range(_ATTEMPTS):
        port = secrets.choice(_OURS)
        if port in _given:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise PortError(f"No free port was found on {HOST} from {_OURS.start} to {_OURS.stop - 1}.")
