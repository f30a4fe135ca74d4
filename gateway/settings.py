"""The settings of the gateway, read once from an environment (operations 2 and 12.3).

A pure function of a mapping: nothing is opened but the files that `..._FILE` variables name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from services.common.settings import Environment, SettingsError, refuse_foreign
from services.common.tls import TlsSettings, read_tls

__all__ = [
    "SECRETS",
    "SERVICES",
    "GatewaySettings",
    "ServiceSettings",
    "SettingsError",
    "Target",
    "is_split",
    "read_service_settings",
    "read_settings",
]

SERVICES: Final = ("model-executor", "mcp-pool", "sandbox-manager")
"""The services behind a gateway, by their names in logs, settings and routes."""

_TARGET_SETTINGS: Final = {name: f"NYLORUN_{name.replace('-', '_').upper()}_TARGET" for name in SERVICES}
_TOKEN_SETTINGS: Final = {name: f"NYLORUN_{name.replace('-', '_').upper()}_GRPC_TOKEN" for name in SERVICES}
_COMMON_TOKEN: Final = "NYLORUN_GRPC_TOKEN"

SECRETS: Final = ("NYLORUN_HARNESS_TOKEN", _COMMON_TOKEN, *_TOKEN_SETTINGS.values())
"""Variables to remove from the process's own environment after reading."""

DEFAULT_ROOT: Final = "/harness"
DEFAULT_HEALTH_PORT: Final = 4300
DEFAULT_STOP_GRACE_MS: Final = 10_000
MAX_STOP_GRACE_MS: Final = 3_600_000
DEFAULT_MAX_MESSAGE_BYTES: Final = 68_157_440
"""64 MiB for a frame's content and 1 MiB for what gRPC wraps around it."""
MIN_MAX_MESSAGE_BYTES: Final = 1_048_576
MAX_MAX_MESSAGE_BYTES: Final = 2_147_483_647
DEFAULT_RECORD_FILE_BYTES: Final = 67_108_864
"""64 MiB: prompts are written once, so a run has to be very long for it."""
DEFAULT_RECORD_FOLDER_BYTES: Final = 1_073_741_824
MIN_RECORD_BYTES: Final = 65_536
MAX_RECORD_BYTES: Final = 1_099_511_627_776

UNNAMED_SHARD: Final = "sandbox-manager"
"""The name of a sandbox-manager that is given as one target without a name."""

_HOST_PORT: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*)|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_SHARD_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a service, or a shard of the sandbox-manager, is reached: a gRPC target with a stable name."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where the three services are and what opens them, by service name. Tokens never appear in `repr`."""

    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    bearers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything the gateway is configured with.

    `targets` is empty in all-in-one mode; otherwise it has all three services. `bearers` holds one token
    per service that has one. Runs are recorded when `record_folder` is given, and shown in a
    page when `view_port` is. Tokens never appear in `repr`.
    """

    harness_url: str
    harness_token: str = field(repr=False)
    gates_url: str | None = None
    root: str = DEFAULT_ROOT
    health_port: int = DEFAULT_HEALTH_PORT
    view_port: int | None = None
    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    bearers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    stop_grace_ms: int = DEFAULT_STOP_GRACE_MS
    log_level: str = "info"
    tls: TlsSettings | None = None
    record_folder: str | None = None
    record_file_bytes: int = DEFAULT_RECORD_FILE_BYTES
    record_folder_bytes: int = DEFAULT_RECORD_FOLDER_BYTES

    @property
    def split(self) -> bool:
        """The services run elsewhere; otherwise they run in this process."""
        return bool(self.targets)


def is_split(environ: Mapping[str, str]) -> bool:
    """Whether any `NYLORUN_*_TARGET` is set: then the process is the split gateway, else all-in-one."""
    env = Environment(environ)
    return any(env.text(name) is not None for name in _TARGET_SETTINGS.values())


def read_settings(environ: Mapping[str, str]) -> GatewaySettings:
    """Reads the settings. Raises SettingsError whose first line is the first thing that is wrong."""
    env = Environment(environ)
    split = is_split(environ)
    refuse_foreign(env)
    harness_url = env.url("NYLORUN_HARNESS_URL", ("ws", "wss"), required=True)
    gates_url = env.url("NYLORUN_GATES_URL", ("http", "https"), required=not split)
    root = env.absolute_path("NYLORUN_HARNESS_ROOT", DEFAULT_ROOT)
    harness_token: str | None = None
    if env.text("NYLORUN_SANDBOX_KIND") == "pod":
        env.problem("NYLORUN_SANDBOX_KIND=pod can't be served: pod mode is not built yet.")
    else:
        harness_token = env.hex_token("NYLORUN_HARNESS_TOKEN", required=True)
    health_port = env.port("NYLORUN_HARNESS_HEALTH_PORT", DEFAULT_HEALTH_PORT)
    view_port = env.optional_port("WHIPPLETREE_GATEWAY_VIEW_PORT")
    if view_port == health_port:
        env.problem("WHIPPLETREE_GATEWAY_VIEW_PORT must be another port than NYLORUN_HARNESS_HEALTH_PORT.")
    services = _read_services(env, split=split)
    stop_grace_ms = env.integer("NYLORUN_STOP_GRACE_MS", DEFAULT_STOP_GRACE_MS, 0, MAX_STOP_GRACE_MS)
    log_level = env.choice("NYLORUN_LOG_LEVEL", ("info", "debug"), "info")
    record_folder = env.text("WHIPPLETREE_RECORD_DIR")
    record_file_bytes = env.integer(
        "WHIPPLETREE_RECORD_FILE_BYTES", DEFAULT_RECORD_FILE_BYTES, MIN_RECORD_BYTES, MAX_RECORD_BYTES
    )
    record_folder_bytes = env.integer(
        "WHIPPLETREE_RECORD_DIR_BYTES", DEFAULT_RECORD_FOLDER_BYTES, MIN_RECORD_BYTES, MAX_RECORD_BYTES
    )
    env.finish()
    return GatewaySettings(
        harness_url=harness_url or "",
        harness_token=harness_token or "",
        gates_url=gates_url.rstrip("/") if gates_url else None,
        root=root,
        health_port=health_port,
        view_port=view_port,
        targets=services.targets,
        bearers=services.bearers,
        max_message_bytes=services.max_message_bytes,
        stop_grace_ms=stop_grace_ms,
        log_level=log_level,
        tls=services.tls,
        record_folder=record_folder,
        record_file_bytes=record_file_bytes,
        record_folder_bytes=record_folder_bytes,
    )


def read_service_settings(environ: Mapping[str, str]) -> ServiceSettings:
    """Only where the services are, for programs beside the gateway that call them as it does; all three
    must be named. Raises SettingsError."""
    env = Environment(environ)
    services = _read_services(env, split=True)
    env.finish()
    return services


def _read_services(env: Environment, *, split: bool) -> ServiceSettings:
    targets = _read_targets(env) if split else {}
    tls = read_tls(env, "client")
    bearers = _read_bearers(env, targets, tls) if split else {}
    max_message_bytes = env.integer(
        "NYLORUN_GRPC_MAX_MESSAGE_BYTES",
        DEFAULT_MAX_MESSAGE_BYTES,
        MIN_MAX_MESSAGE_BYTES,
        MAX_MAX_MESSAGE_BYTES,
    )
    return ServiceSettings(targets, bearers, max_message_bytes, tls)


def without_userinfo(url: str) -> str:
    """The URL without user and password: what may be logged, and what is dialled."""
    scheme, separator, rest = url.partition("://")
    end = re.search(r"[/\\?#]", rest)
    authority = rest[: end.start()] if end else rest
    tail = rest[end.start() :] if end else ""
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{tail}"


def _read_targets(env: Environment) -> dict[str, tuple[Target, ...]]:
    values = {name: env.text(setting) for name, setting in _TARGET_SETTINGS.items()}
    unset = [_TARGET_SETTINGS[name] for name, value in values.items() if value is None]
    if unset:
        env.problem(
            f"{' and '.join(unset)} must be set too: "
            "set all three targets, or none to run the services in this process."
        )
    targets: dict[str, tuple[Target, ...]] = {}
    for name, value in values.items():
        if value is not None:
            setting = _TARGET_SETTINGS[name]
            if name == "sandbox-manager":
                targets[name] = _shards(env, setting, value)
            else:
                targets[name] = _one_target(env, setting, name, value)
    return targets


def _one_target(env: Environment, setting: str, name: str, value: str) -> tuple[Target, ...]:
    problem = _target_problem(value, several=True)
    if problem is not None:
        env.problem(f"{setting} {problem}")
    return (Target(name, value),)


def _shards(env: Environment, setting: str, value: str) -> tuple[Target, ...]:
    shards: dict[str, Target] = {}
    for part in (part.strip() for part in value.split(",")) if "=" in value else ():
        shard, separator, target = (text.strip() for text in part.partition("="))
        if not separator or _SHARD_NAME.fullmatch(shard) is None:
            env.problem(f"{setting} must be a comma list of name=target.")
        elif shard in shards:
            env.problem(f"{setting} names the shard {shard} twice.")
        elif (problem := _target_problem(target, several=False)) is not None:
            env.problem(f"{setting}, shard {shard}: {problem}")
        else:
            shards[shard] = Target(shard, target)
    if shards or "=" in value:
        return tuple(shards.values())
    problem = _target_problem(value, several=False)
    if problem is not None:
        env.problem(f"{setting} {problem}")
    return (Target(UNNAMED_SHARD, value),)


def _target_problem(target: str, *, several: bool) -> str | None:
    """What is wrong with a gRPC target, as the rest of a sentence; None when nothing is."""
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        return None if path.startswith("/") else "must name an absolute path after unix:."
    scheme = next((name for name in ("ipv4", "ipv6") if target.startswith(f"{name}:")), None)
    if scheme is not None:
        addresses = target.partition(":")[2].split(",")
        if len(addresses) > 1 and not several:
            return "must be one address: a shard is never spread over several."
        return next((text for text in map(_address_problem, addresses) if text is not None), None)
    if "," in target:
        return "can't be a list of host names: use one DNS name, or ipv4:/ipv6: with a list of addresses."
    return _address_problem(target.removeprefix("dns:").removeprefix("///"))


def _address_problem(address: str) -> str | None:
    match = _HOST_PORT.fullmatch(address)
    if match is None or not 1 <= int(match.group(1)) <= 65535:
        return "must be host:port, dns:///host:port, unix:/path, or ipv4:/ipv6: with addresses."
    return None


def _read_bearers(
    env: Environment, targets: Mapping[str, tuple[Target, ...]], tls: TlsSettings | None
) -> dict[str, str]:
    common = env.hex_token(_COMMON_TOKEN, several=True)
    bearers: dict[str, str] = {}
    for name in SERVICES:
        own = env.hex_token(_TOKEN_SETTINGS[name], several=True)
        token = own or common
        if token is not None:
            bearers[name] = token
        elif (tls is None or not tls.mutual) and any(
            not shard.target.startswith("unix:") for shard in targets.get(name, ())
        ):
            env.problem(f"{_TOKEN_SETTINGS[name]} or {_COMMON_TOKEN} is required to reach {name} over TCP.")
    return bearers
